/** Shared by all views: the state in the URL, requests to the server, and new elements. */

/** The entries of /api/stores, one for each store. start.js fills it before it shows a view. */
export const stores = [];

const SHARED = ["store", "q", "sort", "at", "px", "selected", "over"]; // parameters of all views; every other parameter belongs to one view
const NUMBERS = {store: 0, at: 0, px: 160, index: 0, opacity: 70};
const NO_DATABASE = 503; // the status of the viewer's reply when MongoDB does not answer
const [SLOW_MS, ASK_AGAIN_MS] = [500, 1000];
export const find = (selector) => document.querySelector(selector);

/** Return the state in the URL: all parameters as text, except NUMBERS, which are numbers. */
export function state() {
  const given = Object.fromEntries(new URLSearchParams(location.search));
  const numbers = Object.entries(NUMBERS).map(([name, usual]) => {
    const number = Math.floor(Number(given[name] ?? usual));
    return [name, number >= 0 && Number.isSafeInteger(number) ? number : usual];
  });
  return {view: "grid", q: "", sort: "", ...given, ...Object.fromEntries(numbers)};
}

/** Return the URL of the present state with changes; null or "" removes a parameter. A change of the view removes the
 * parameters of the old view, and a change of the store removes parameters that refer to records of the old store. */
export function url(changes) {
  const query = new URLSearchParams(location.search);
  const [viewed, stored] = ["view" in changes, "store" in changes && String(changes.store) !== (query.get("store") ?? "0")];
  for (const name of [...query.keys()])
    if ((viewed && !SHARED.includes(name)) || (stored && !["view", "store", "px"].includes(name))) query.delete(name);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === NUMBERS[name] || (name === "view" && value === "grid"))
      query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Change the state in the URL, and show it. With replace, the back button does not return to the present state. */
export function go(changes, {replace = false} = {}) {
  const next = url(changes);
  if (next !== location.pathname + location.search) {
    if (replace) history.replaceState(history.state, "", next);
    else history.pushState({isOpened: changes.view === "record" || "open" in changes}, "", next);
  }
  dispatchEvent(new PopStateEvent("popstate")); // start.js shows the new state
}

/** Return from a record to where it was opened. Esc and the back button do the same. */
export function leave() {
  if (history.state?.isOpened) history.back();
  else go({view: null, open: null});
}

/** Return a link to the present state with changes. A click does not load the page again. */
export function link(changes, ...children) {
  return make("a", {href: url(changes), onclick: (event) => isElsewhere(event) || go(changes)}, ...children);
}

/** Return whether a click opens a link in another tab or window. If not, keep the browser from following the link. */
export function isElsewhere(event) {
  const elsewhere = event.ctrlKey || event.metaKey || event.shiftKey;
  if (!elsewhere) event.preventDefault();
  return elsewhere;
}

/** Fetch a URL, and return the reply. While the viewer or its database does not answer, show a message in the bar at the bottom of
 * the page and wait. Throws only an AbortError. `options` are options of fetch. */
export async function ask(src, signal, options = {}) {
  let isSlow = false;
  const timer = setTimeout(() => bar({slow: bar.slow + Number(isSlow = true)}), SLOW_MS);
  try {
    for (;;) {
      const reply = await fetch(src, {signal, ...options}).catch((error) => {
        if (signal?.aborted) throw error;
        return null;
      });
      if (reply && reply.status !== NO_DATABASE) return reply;
      back ??= waitUntilBack(reply);
      await back;
    }
  } finally {
    clearTimeout(timer);
    bar({slow: bar.slow - Number(isSlow)});
  }
}
let back = null; // while the server does not answer: a promise of its next answer

/** Ask again and again until the server answers. If the viewer was stopped, load the page again: it may show another store now. */
async function waitUntilBack(reply) {
  let wasStopped = false;
  while (!reply || reply.status === NO_DATABASE) {
    wasStopped ||= !reply;
    bar({away: reply ? `Waiting for the database: ${await errorOf(reply)}` : "The viewer does not answer: was `dbloader view` stopped?"});
    await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
    reply = await fetch(`/api/${state().store}/note`).catch(() => null);
  }
  if (wasStopped) location.reload();
  back = null;
  bar({away: ""});
}

/** Change the bar at the bottom: `away`, why the server does not answer; `slow`, the number of slow requests; `note`, about the store. */
export function bar(changes) {
  Object.assign(bar, changes);
  const isAsked = stores[state().store]?.kind === "mongodb";
  find("#note").textContent = escaped(bar.away || (bar.slow ? `Loading…${isAsked ? " MongoDB has not answered yet." : ""}` : bar.note));
  find("#note").classList.toggle("slow", !bar.away && bar.slow > 0); // a small sign that moves nothing
}
Object.assign(bar, {away: "", slow: 0, note: ""});

/** Return the message of a reply that is an error. */
export const errorOf = async (reply) => (await reply.json().catch(() => ({}))).error ??
  `The server answered ${reply.status} ${reply.statusText}`;

/** Return the JSON of a route, as in `api("/api/0/rows", {q, start: 0, count: 50}, signal)`. Parameters that are null are left out.
 * Throws an Error with the server's message, or an AbortError. */
export async function api(path, params = {}, signal) {
  const reply = await ask(address(path, params), signal);
  if (!reply.ok) throw new Error(await errorOf(reply));
  return reply.json();
}

/** Call `run(signal)` for an element if `key`, which names all that it shows, has changed. An earlier call for the element is aborted.
 * After an error, call `failed` with its message; the next call runs again. Return whether this call has run to its end. */
export async function refresh(element, key, run, failed) {
  if (key === element.key) return false;
  element.key = key;
  const signal = restart(element);
  try {
    await run(signal);
  } catch (error) {
    if (!signal.aborted) {
      element.key = "";
      failed(escaped(error.message));
    }
    return false;
  }
  return !signal.aborted;
}

/** Abort what an element has requested, and return the signal of its next requests. */
export function restart(element) {
  element.stop?.abort();
  return (element.stop = new AbortController()).signal;
}

/** Return the reason why the server has no picture at a URL; null if it has one. */
export async function whyMissing(src) {
  const reply = await ask(src);
  return reply.ok ? null : errorOf(reply);
}

/** Show a picture in an img element. If there is none, call `failed` with the reason. */
export function load(image, src, failed = () => {}, isFirst = true) {
  image.style.visibility = "";
  image.onerror = async () => {
    image.style.visibility = "hidden"; // the browser's sign of a broken picture
    const why = await whyMissing(src);
    if (image.getAttribute("src") !== src) return; // the element shows another picture now
    if (why === null && isFirst) load(image, src, failed, false);
    else failed(why ?? "This browser does not show the picture.");
  };
  image.src = src;
}

/** Return a path with parameters. Parameters that are null are left out. */
export function address(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  return query.size ? `${path}?${query}` : path;
}

/** Return a link that downloads the records of a query as a listing. */
export const listing = (store, q) => make("a", {href: address(`/listing/${store}`, {q}), download: ""}, "CSV");

/** Return the URL of a picture of a record. `kind` is "thumb" or "image"; `params` are px and field. */
export function picture(kind, store, index, params = {}) {
  return address(`/${kind}/${store}/${index}`, {...params, v: stores[store].viewer_id});
}

/** Return a checkbox for the boxes, and for each mask, that can be drawn over the thumbnails of a store. */
export function overlays(store) {
  const chosen = (over(store) ?? "").split(",");
  return layers(store).map(([key, name]) => {
    const choose = ({target}) =>
      go({over: [...chosen.filter((other) => other && other !== key), ...target.checked ? [key] : []].join()}, {replace: true});
    return make("label", {}, make("input", {type: "checkbox", checked: chosen.includes(key), onchange: choose}), ` ${escaped(name)}`);
  });
}

function layers(store) {
  const files = stores[store].file_fields.map((name, number) => [String(number), name]);
  return "boxes" in stores[store].fields ? [["boxes", "boxes"], ...files] : files;
}

/** Return the layers in the URL that a store has, as the server expects them; null for none. */
export function over(store) {
  const known = layers(store).map(([key]) => key);
  return (state().over ?? "").split(",").filter((key) => known.includes(key)).join() || null;
}

/** Return a new element; a tag such as "svg:rect" makes an SVG element. A property that the element does not have becomes an attribute.
 * Children that are strings become text, never markup. */
export function make(tag, properties = {}, ...children) {
  const svg = tag.startsWith("svg:");
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (typeof value === "function") element[name] = (event) => void value(event); // a handler that returns false cancels the event
    else if (name in element && !svg) element[name] = value;
    else element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a text in which control characters, bidirectional and other invisible characters are escaped. */
export function escaped(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (mark) => {
    const code = mark.codePointAt(0).toString(16);
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[mark] ?? (code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`);
  });
}

/** Return the class name of a label; "label 3" for a label without a name; "" for null. */
export const className = (store, label) => (label === null ? "" : (stores[store].classes?.[label] ?? `label ${label}`));

/** Return a label or a prediction as text. A number is a label. */
export const labelName = (store, value) => (value == null ? "" : escaped(typeof value === "number" ? className(store, value) : value));

/** Return a number with commas: 12,345. */
export const counted = (number) => number.toLocaleString("en-US");

/** Return a number with its noun: "1 record", "2 records". */
export const amount = (number, noun) => `${counted(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return a number of bytes with a unit: 4.2 MB. */
export function sized(bytes) {
  for (const [unit, one] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (bytes >= one) return `${(bytes / one).toFixed(bytes < 100 * one ? 1 : 0)} ${unit}`;
  return `${bytes} B`;
}

/** Show a text at the bottom of the page for some seconds, and a button if one is given. Screen readers read it. */
export function notice(text, button = null) {
  find("#notice").replaceChildren(text, button ?? "");
  clearTimeout(noticed);
  noticed = setTimeout(() => find("#notice").replaceChildren(), button ? 10_000 : 5000);
}
let noticed = 0;

/** Let a screen reader read a text that is not shown. */
export const say = (text) => { find("#said").textContent = escaped(text); };

/** Return the last part of a store's place; the whole place if both stores have the same last part. */
export function shortPlace(store) {
  const last = stores.map(({place}) => place.replace(/\/+$/, "").split("/").at(-1));
  return escaped(new Set(last).size === last.length ? last[store] : stores[store].place);
}

/** Set the title of the window: the text, then the store. */
export function title(text) {
  document.title = [escaped(text), shortPlace(state().store), "dbloader"].filter(Boolean).join(" · ");
}

/** Open or close the side bar of a narrow window. */
export function menu(open) {
  find("#menu").ariaExpanded = String(document.body.classList.toggle("menu", open));
}
