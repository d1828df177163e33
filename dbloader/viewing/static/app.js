/** What all views share: the URL as the state, requests, elements. */

/** One entry of /api/stores for each store of the page. Filled before a view is first shown. */
export const stores = [];

const OF_ALL_VIEWS = ["store", "q", "at", "px", "selected"]; // other parameters are those of one view
const NUMBERS = {store: 0, at: 0, px: 160, index: 0};
const AWAY = 503; // the status if the database does not answer
const [SLOW_MS, ASK_AGAIN_MS] = [500, 1000];
export const find = (selector) => document.querySelector(selector);

/** Return the state that the URL says: all parameters as text, the numbers among them as numbers. */
export function state() {
  const given = Object.fromEntries(new URLSearchParams(location.search));
  const numbers = Object.entries(NUMBERS).map(([name, usual]) => {
    const number = Math.floor(Number(given[name] ?? usual));
    return [name, number >= 0 && Number.isSafeInteger(number) ? number : usual];
  });
  return {view: "grid", q: "", ...given, ...Object.fromEntries(numbers)};
}

/** Return the URL of the present state with changes; null or "" removes a parameter. Another view
 * begins with its own, and what was of another store's records goes. */
export function url(changes) {
  const query = new URLSearchParams(location.search);
  const [viewed, stored] = ["view" in changes, "store" in changes && String(changes.store) !== (query.get("store") ?? "0")];
  for (const name of [...query.keys()])
    if ((viewed && !OF_ALL_VIEWS.includes(name)) || (stored && !["view", "store", "px"].includes(name))) query.delete(name);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === NUMBERS[name] || (name === "view" && value === "grid"))
      query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Change the state, which is the URL, and show it. With replace, the back button does not come back to the present one. */
export function go(changes, {replace = false} = {}) {
  const next = url(changes);
  if (next !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", next);
  dispatchEvent(new PopStateEvent("popstate")); // as if by the back button
}

/** Return a link to the present state with changes, which opens without loading the page again. */
export function link(changes, ...children) {
  return make("a", {href: url(changes), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(changes);
  }}, ...children);
}

/** Return the server's reply to a URL, as fetch does. If the viewer or its database does not answer, the bar at the bottom of the page
 * says so, and this waits until it answers again. Throws only an AbortError. */
export async function ask(src, signal) {
  let isSlow = false;
  const timer = setTimeout(() => bar({slow: bar.slow + Number(isSlow = true)}), SLOW_MS);
  try {
    for (;;) {
      const reply = await fetch(src, {signal}).catch((error) => {
        if (signal?.aborted) throw error;
        return null;
      });
      if (reply && reply.status !== AWAY) return reply;
      back ??= waitUntilBack(reply);
      await back;
    }
  } finally {
    clearTimeout(timer);
    bar({slow: bar.slow - Number(isSlow)});
  }
}
let back = null; // while the server is away: a promise that ends when it answers

/** Ask again and again until the server answers. A viewer that was stopped may show another store now: the page is loaded again. */
async function waitUntilBack(reply) {
  let wasStopped = false;
  while (!reply || reply.status === AWAY) {
    wasStopped ||= !reply;
    bar({away: reply ? `This page waits for the database: ${await errorOf(reply)}` : "The viewer does not answer: was `dbloader view` stopped?"});
    await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
    reply = await fetch(`/api/${state().store}/note`).catch(() => null);
  }
  if (wasStopped) location.reload();
  back = null;
  bar({away: ""});
}

/** Change what the bar at the bottom says: that the server is away, that requests are slow, or a note about the store. */
export function bar(changes) {
  Object.assign(bar, changes);
  find("#note").textContent = escaped(bar.away || (bar.slow ? "Loading…" : bar.note));
}
Object.assign(bar, {away: "", slow: 0, note: ""});

/** Return the sentence of a reply that is an error. */
export const errorOf = async (reply) =>
  (await reply.json().catch(() => ({}))).error ?? `The server answered ${reply.status} ${reply.statusText}`;

/** Return the JSON of a route, as `api("/api/0/rows", {q, start: 0, count: 50}, signal)`; parameters that are null are left out.
 * Throws an Error with the server's sentence, or an AbortError. */
export async function api(path, params = {}, signal) {
  const reply = await ask(address(path, params), signal);
  if (!reply.ok) throw new Error(await errorOf(reply));
  return reply.json();
}

/** Return why the server has no picture at a URL; null if it has one. */
export async function whyMissing(src) {
  const reply = await ask(src);
  return reply.ok ? null : errorOf(reply);
}

/** Show a picture in an element. `failed` gets the reason why there is none; while the server is away, the element is empty. */
export function load(image, src, failed = () => {}, isFirst = true) {
  image.style.visibility = "";
  image.onerror = async () => {
    image.style.visibility = "hidden"; // no sign of a broken picture
    const why = await whyMissing(src);
    if (image.getAttribute("src") !== src) return; // it shows another picture by now
    if (why === null && isFirst) load(image, src, failed, false);
    else failed(why ?? "This browser does not show the picture.");
  };
  image.src = src;
}

/** Return a path with parameters; those that are null are left out. */
export function address(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  return query.size ? `${path}?${query}` : path;
}

/** Return links that download the records of a query as a listing, in each format. */
export const listings = (store, q) => ["csv", "jsonl"].map((format) =>
  make("a", {href: address(`/listing/${store}`, {q, format}), download: ""}, format));

/** Return the URL of a picture of a record: kind is "thumb" or "image"; params are px and field. */
export function picture(kind, store, index, params = {}) {
  return address(`/${kind}/${store}/${index}`, {...params, v: stores[store].started});
}

/** Return a new element. Properties that the element has are set, others become attributes; "svg:rect" is of SVG. Texts among
 * the children become text, never markup. */
export function make(tag, properties = {}, ...children) {
  const svg = tag.startsWith("svg:");
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name in element && (!svg || name.startsWith("on"))) element[name] = value;
    else element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a text with control, bidirectional and other invisible characters as visible escapes. */
export function escaped(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (mark) => {
    const code = mark.codePointAt(0).toString(16);
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[mark] ?? (code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`);
  });
}

/** Return the name of a label; "label 3" if it has none, "" without a label. */
export function className(store, label) {
  return label === null ? "" : (stores[store].classes?.[label] ?? `label ${label}`);
}

/** Return a number as people write it: 12,345. */
export const counted = (number) => number.toLocaleString("en-US");

/** Return what belongs to a number if only the first records were looked at; `first` is null if all were. */
export const ofFirst = (first) => (first ? `, of the first ${counted(first)}` : "");

/** Return bytes as people write them: 4.2 MB. */
export function sized(bytes) {
  for (const [unit, one] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (bytes >= one) return `${(bytes / one).toFixed(bytes < 100 * one ? 1 : 0)} ${unit}`;
  return `${bytes} B`;
}

/** Say something at the bottom of the page for some seconds; screen readers read it out. */
export function notice(text) {
  find("#notice").textContent = text;
  clearTimeout(noticed);
  noticed = setTimeout(() => (find("#notice").textContent = ""), 5000);
}
let noticed = 0;

/** Return the last part of a store's place, or all of it if the other store has the same one. */
export function shortPlace(store) {
  const last = stores.map(({place}) => place.split("/").at(-1));
  return escaped(new Set(last).size === last.length ? last[store] : stores[store].place);
}

/** Set the title of the window: what is shown, then the store. */
export function title(text) {
  document.title = [escaped(text), shortPlace(state().store), "dbloader"].filter(Boolean).join(" · ");
}

/** Open or close the side bar where the window is narrow. */
export function menu(open) {
  find("#menu").ariaExpanded = String(document.body.classList.toggle("menu", open));
}
