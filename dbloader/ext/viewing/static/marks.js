/** Marks: what people decide about records. The server keeps them in a file beside the store, which `dbloader copy --marks` applies. */
import {amount, api, ask, counted, errorOf, escaped, find, go, link, make, notice, state, stores} from "./app.js";
import {code} from "./record.js";

const HOLD_MS = 400; // a press of this length selects a record; browsers open their menu at 500 ms
const STILL = 10; // px that the finger may move during a long press
const MANY = 100; // the page asks before a change of more records, as marks.py copies the file then
const NAMES = {drop: "Drop", label: "Set label", tag: "Tag", clear: "Clear marks", untag: "Remove tag", remove: "Remove"};

/** Return a change in words, such as "Set label dog". */
function words(change) {
  const [[key, value]] = Object.entries(change);
  return value === true ? NAMES[key] : `${NAMES[key]} ${escaped(value)}`;
}

/** Return the marks of a record as a short text, from its fields. */
export const badge = ({"mark.drop": drop, "mark.label": label, "mark.tags": tags}) =>
  [drop === "true" && "drop", label && `→ ${label}`, tags].filter(Boolean).map(escaped).join(" · ");

let held = false; // whether the last press was long; if so, its click is ignored, wherever the finger is lifted
/** Call `run` after a long press on an element. */
export function onHold(element, run) {
  let timer = 0, start;
  const end = () => clearTimeout(timer);
  element.onpointerdown = (event) => {
    held = false;
    start = event;
    if (event.pointerType === "touch") timer = setTimeout(() => { held = true; run(); }, HOLD_MS);
  };
  element.onpointermove = (event) => start && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) > STILL && end();
  element.onpointerup = element.onpointercancel = end;
  element.oncontextmenu = (event) => event.pointerType === "touch" && event.preventDefault();
  element.addEventListener("click", (event) => held && event.stopPropagation(), true);
}

/** Show how many records of a store are marked, the command that applies the marks, and a button that undoes the last change. */
export function showMarks(section, store) {
  const {count, command, undo, why_not: why} = stores[store].marks;
  section.hidden = !count && !undo;
  const columns = Object.keys(stores[store].columns).filter((name) => name.startsWith("mark."))
    .map((name) => (name === "mark.drop" ? name : `${name}!=""`));
  const text = undo && `${words(undo.change)} (${amount(undo.count, "record")})`;
  const run = async (event) => {
    event.target.disabled = true; // a double click must not undo two changes
    if (await mark(store, "", {undo: undo.id}, undo.count, `Undo ${text}`)) notice(`Undone: ${text}`);
    go({}, {replace: true});
    (find("#undo") ?? find("#main")).focus();
  };
  section.replaceChildren(make("h2", {}, "Marks"), ...count ? [make("p", {}, `${counted(count)} marked: `,
    link({view: null, index: null, at: null, q: columns.join(" or ")}, "show")), code(command)] : [],
    ...undo ? [make("p", {class: "row"}, make("button", {id: "undo", onclick: run, disabled: why !== null, "aria-describedby": "last"}, "Undo"), make("span", {id: "last"}, text))] : []);
}

/** Return the question before a change of many records. Only a label replaces an earlier mark. */
async function question(store, q, what, text) {
  if (!("label" in what && "mark.label" in stores[store].columns)) return text;
  const {count} = await api(`/api/${store}/select`, {q: `${q && `(${q}) `}mark.label!=""`}).catch(() => ({count: 0})); // the change itself shows the error
  return count ? `${text}\n\nThis replaces the labels that ${amount(count, "record")} got before.` : text;
}

/** Change the marks of `count` records, which a query or one of several queries finds. Ask first if they are many. Return whether the
 * server has done it; otherwise the page shows the reason. */
export async function mark(store, q, what, count, text = words(what)) {
  const asks = count > (what.clear ? 1 : MANY);
  if (asks && !confirm(await question(store, q, what, `${text}: ${amount(count, "record")}?`))) return false;
  const reply = await ask(`/api/${store}/marks`, undefined, {method: "POST", body: JSON.stringify({q, ...what})});
  if (reply.ok) stores[store] = await reply.json();
  else {
    notice(escaped(await errorOf(reply)));
    await api("/api/stores").then((all) => Object.assign(stores, all), () => {}); // another tab may have changed the marks
  }
  find("#sidebar").show(state());
  return reply.ok;
}

/** The bar that marks records. */
class Marks extends HTMLElement {
  connectedCallback() {
    const field = (id, text, name) => make("input", {id, placeholder: text, ariaLabel: name, size: 10, autocomplete: "off"});
    const button = (text, run) => make("button", {onclick: run}, text);
    const id = `classes-of-${this.parentElement.localName}`;
    this.names = make("datalist", {id});
    this.label = field(null, "class", "Class to set");
    this.label.setAttribute("list", id);
    this.tag = field(null, "tag", "Tag to add");
    const label = () => this.label.value && this.change({label: stores[state().store].classes.length ? this.label.value : Number(this.label.value)});
    const tag = (key = "tag") => this.tag.value && this.change({[key]: this.tag.value.trim()});
    for (const [input, run] of [[this.label, label], [this.tag, tag]]) input.onkeydown = (event) => event.key === "Enter" && run();
    this.why = make("span", {class: "muted"});
    this.append(make("span", {}, button("Drop", () => this.change({drop: true})), button("Keep", () => this.change({remove: "drop"}))),
      make("span", {}, this.label, this.names, button("Set label", label), button("Remove label", () => this.change({remove: "label"}))),
      make("span", {}, this.tag, button("Tag", () => tag()), button("Remove tag", () => tag("untag"))), button("Clear marks", () => this.change({clear: true})), this.why);
  }

  /** Offer to mark the records of a query. */
  show(count, q) {
    [this.count, this.q] = [count, q];
    const {classes, marks} = stores[state().store];
    if (this.listed !== classes) this.names.replaceChildren(...classes.map((name) => make("option", {value: name})));
    this.listed = classes;
    for (const control of this.querySelectorAll("button, input")) {
      control.disabled = marks.why_not !== null;
      control.title = escaped(marks.why_not ?? "");
    }
    this.why.textContent = marks.why_not === null ? "" : escaped(`Marks are off: ${marks.why_not}.`);
  }

  /** Take over what the user typed into the bar of the same record while the server made a change. */
  keep(before, focused) {
    for (const name of ["label", "tag"]) {
      if (before[name].value.trim() === before.sent) continue;
      this[name].value = before[name].value;
      if (before[name] === focused) this[name].focus();
    }
  }

  async change(what) {
    const {store} = state(), from = document.activeElement;
    this.sent = String(what.label ?? what.tag ?? what.untag ?? "");
    if (!await mark(store, this.q, what, this.count)) return;
    notice(`${amount(this.count, "record")}: ${what.clear ? "marks removed" : what.drop ? "drop" : escaped(what.label ?? what.tag ?? words(what))}`);
    if (document.activeElement === from) from?.blur(); // keys move in the grid again
    go({selected: null}, {replace: true});
  }
}
customElements.define("db-marks", Marks);
