/** Marks: what people decide about records. The server keeps them in a file beside the store, which `dbloader copy --marks` applies. */
import {amount, api, ask, counted, errorOf, escaped, find, go, link, make, notice, restart, state, stores} from "./app.js";
import {empty, icon, pictured} from "./icons.js";
import {keys} from "./keys.js";
import {quoted} from "./query.js";
import {code} from "./record.js";

const HOLD_MS = 400; // a press of this length selects a record; browsers open their menu at 500 ms
const STILL = 10; // px that the finger may move during a long press
const LOOK_MS = 3000; // between looks for marks that others have set
const MANY = 100; // the page asks before a change of more records, as marks.py copies the file then
const DONE = {
  drop: () => "marked to drop", label: (value) => `labeled ${value}`, accept: () => "labeled as predicted",
  tag: (value) => `tagged ${value}`, untag: (value) => `no longer tagged ${value}`, clear: () => "without marks",
  remove: (value) => (value === "drop" ? "kept" : "with their old label"),
};

/** Return a change of records in words, such as "20 records marked to drop". */
function words(change, count) {
  const [[key, value]] = Object.entries(change);
  return `${amount(count, "record")} ${escaped(DONE[key](value))}`;
}

/** Return the properties of a control that changes marks: whether it is off, and why. */
export const locked = (store) => ({disabled: stores[store].marks.why_not !== null, title: escaped(stores[store].marks.why_not ?? "")});

/** Return the marks of a record as a short text, from its fields. "now" is a decision of the user; an arrow leads to a prediction. */
export const badge = ({"mark.drop": drop, "mark.label": label, "mark.tags": tags}) =>
  [drop === "true" && "drop", label && `now ${label}`, tags].filter(Boolean).map(escaped).join(" · ");

/** Show marks that another browser or program has set. */
async function look() {
  const {store} = state();
  if (document.hidden || !stores.length) return;
  const {revision} = await fetch(`/api/${store}/revision`).then((reply) => reply.json()).catch(() => ({}));
  if (revision === undefined || revision === stores[store].marks.revision) return;
  await api("/api/stores").then((all) => { Object.assign(stores, all); go({}, {replace: true}); }, () => {});
}
setInterval(look, LOOK_MS);

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
  element.onpointermove = (event) => {
    if (start && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) > STILL) end();
  };
  element.onpointerup = element.onpointercancel = end;
  element.oncontextmenu = (event) => { if (event.pointerType === "touch") event.preventDefault(); };
  element.addEventListener("click", (event) => held && event.stopPropagation(), true);
}

/** Undo the last change of marks, or make the last undone change again. Steps that are asked for quickly follow each other. */
export const step = (name) => (stepped = stepped.then(() => oneStep(name)));
let stepped = Promise.resolve();

async function oneStep(name) {
  const {store} = state(), last = stores[store].marks[name];
  if (!last) return notice(name === "undo" ? "There is no change to undo." : "There is no undone change.");
  if (!await mark(store, "", {[name]: last.id}, 1)) return;
  const other = name === "undo" ? "redo" : "undo";
  notice(`${name === "undo" ? "Undone: " : ""}${words(last.change, last.count)}`,
    button(other === "undo" ? "Undo" : "Redo", () => step(other)));
  go({}, {replace: true}); // shows the marks in every view
}
const button = (text, run, properties = {}) => make("button", {onclick: run, ...properties}, text);
keys({"Ctrl-z": ["Undo the last change of marks", () => step("undo")], "Ctrl-Z": ["Redo", () => step("redo")],
  c: ["Changes", () => showChanges()]});

/** Show the number of changes in the head of the page. */
export function countChanges(store) {
  const {count, undo, redo} = stores[store].marks, head = find("#changed");
  head.hidden = !count && !undo && !redo;
  head.onclick = () => showChanges();
  head.replaceChildren(icon("changes"),
    make("span", {}, counted(count), make("span", {class: "unit"}, count === 1 ? " change" : " changes")));
  head.ariaLabel = amount(count, "change");
  if (find("#changes").open) showChanges(true);
}

/** Show pictures of the marked records, and the command that applies the marks, in a panel. `isAgain`: only if the panel is open. */
async function showChanges(isAgain = false) {
  const {store} = state(), panel = find("#changes"), {command, undo, redo} = stores[store].marks;
  const {count, kinds} = await api(`/api/${store}/marked`).catch((error) => (notice(error.message), {kinds: []}));
  if (isAgain && !panel.open) return;
  const total = stores[store].marks.count, off = locked(store);
  const back = async (q, what, number) => await mark(store, q, what, number) && go({}, {replace: true});
  const last = (name, text, change) =>
    button(text, () => step(name), {id: name, disabled: off.disabled || !change, title: change ? words(change.change, change.count) : ""});
  const section = ({key, value, count: number, first}) => {
    const shown = escaped(value), what = key === "tag" ? {untag: value} : {remove: key};
    const q = key === "drop" ? "mark.drop" : key === "label" ? `mark.label=${quoted(value)}` : `mark.tags~${quoted(value)}`;
    const ariaLabel = `Take back: ${words(key === "drop" ? {drop: true} : {[key]: value}, number)}`;
    const head = make("h3", {}, make("span", {class: `chip ${key}`}, {drop: "Drop", label: `→ ${shown}`, tag: `Tag ${shown}`}[key]),
      make("span", {class: "muted"}, amount(number, "record")), link({view: null, index: null, at: null, q}, "Show"),
      button("Take back", () => back(q, what, number), {...off, ariaLabel}));
    const thumbs = first.map((index) => make("span", {},
      Object.assign(link({view: "record", index}, pictured(store, index)), {ariaLabel: `Record ${counted(index)}`}),
      button("×", () => back(`index:${index}`, what, 1), {...off, class: "back", ariaLabel: `Take back the mark of record ${index}`})));
    const more = number > first.length ? make("span", {class: "more"}, `+ ${counted(number - first.length)}`) : null;
    return make("section", {}, head, make("div", {class: "thumbs"}, ...thumbs, more ?? ""));
  };
  const scrolled = panel.scrollTop;
  const how = make("p", {class: "muted"}, "The store stays as it is. This command writes a copy with the changes:");
  panel.replaceChildren(make("header", {}, make("h2", {id: "changes-title"}, amount(total, "change")),
    last("undo", "Undo", undo), last("redo", "Redo", redo), button("Close", () => panel.close())),
  ...total ? [how, code(command)] : [empty("changes", "No record is marked")], ...kinds.map(section));
  // before the link shows another view
  for (const each of panel.querySelectorAll("a")) each.addEventListener("click", () => panel.close(), true);
  if (!panel.open) panel.showModal();
  panel.scrollTop = scrolled;
}

/** Return the question before a change of many records. Only a label replaces an earlier mark. */
async function question(store, q, what, count) {
  const [[key, value]] = Object.entries(what), text = `${amount(count, "record")} will be ${escaped(DONE[key](value))}.`;
  if (!("label" in what && "mark.label" in stores[store].columns)) return text;
  // the change itself shows the error
  const {count: old} = await api(`/api/${store}/select`, {q: `${q && `(${q}) `}mark.label!=""`}).catch(() => ({count: 0}));
  return old ? `${text}\n\nThis replaces the labels that ${amount(old, "record")} got before.` : text;
}

/** Change the marks of `count` records, which a query or one of several queries finds. Ask first if they are many. Return whether the
 * server has done it. The page shows what was done, with a button that undoes it, or the reason why not. */
export async function mark(store, q, what, count) {
  const isStep = "undo" in what || "redo" in what;
  if (!isStep && count > (what.clear ? 1 : MANY) && !confirm(await question(store, q, what, count))) return false;
  const before = stores[store].marks.undo?.id;
  const reply = await ask(`/api/${store}/marks`, undefined, {method: "POST", body: JSON.stringify({q, ...what})});
  if (reply.ok) stores[store] = await reply.json();
  else {
    const why = await errorOf(reply);
    await api("/api/stores").then((all) => Object.assign(stores, all), () => {}); // another tab may have changed the marks
    notice(escaped(why));
  }
  const {undo} = stores[store].marks;
  if (reply.ok && !isStep) {
    if (undo && undo.id !== before) notice(words(what, undo.count), button("Undo", () => step("undo")));
    else notice("Nothing has changed.");
  }
  find("#sidebar").show(state());
  countChanges(store);
  return reply.ok;
}

/** Mark the records of a query to drop. If all of them are marked, keep them. */
export async function toggleDrop(store, q, count) {
  const {kinds} = await api(`/api/${store}/marked`, {q}).catch(() => ({kinds: []})); // the change itself shows the error
  const isDropped = kinds.some((kind) => kind.key === "drop" && kind.count === count);
  return mark(store, q, isDropped ? {remove: "drop"} : {drop: true}, count);
}

/** The bar that marks records. */
class Marks extends HTMLElement {
  connectedCallback() {
    const field = (text, name, run) =>
      make("input", {placeholder: text, ariaLabel: name, size: 10, autocomplete: "off",
        onkeydown: (event) => event.key === "Enter" && run()});
    const label = () => {
      const typed = this.label.value.trim();
      if (typed) this.change({label: stores[state().store].classes.length ? typed : Number(typed)});
    };
    const tag = () => this.tag.value.trim() && this.change({tag: this.tag.value.trim()});
    this.label = field("class", "Class to set", label);
    this.label.setAttribute("list", "class-names");
    this.label.oninput = () => (this.set.textContent = this.isNew() ? "Set new class" : "Set label");
    this.tag = field("tag", "Tag to add", tag);
    this.why = make("span", {class: "muted"});
    this.drop = button("Drop", () => this.change({drop: true}, true), {ariaPressed: "false", title: "Mark to drop, or keep (d)"});
    this.set = button("Set label", label);
    this.accept = button("Accept prediction", () => this.change({accept: true}));
    this.given = make("span", {class: "given"}); // labels and tags of these records; a click takes them back
    this.clear = button("Clear marks", () => this.change({clear: true}));
    this.append(this.drop, make("span", {}, this.label, this.set), this.accept,
      make("span", {}, this.tag, button("Tag", tag)), this.given, this.clear, this.why);
  }

  /** Return whether the typed class is not a class of the store. */
  isNew() {
    const {classes} = stores[state().store], typed = this.label.value.trim();
    return classes.length > 0 && typed !== "" && !classes.includes(typed);
  }

  /** Offer to mark the records of a query. */
  async show(count, q) {
    [this.count, this.q] = [count, q];
    const {marks, columns} = stores[state().store];
    this.accept.hidden = !columns.prediction;
    this.accept.textContent = count === 1 ? "Accept prediction" : "Accept predictions";
    this.why.textContent = marks.why_not === null ? "" : escaped(`Marks are off: ${marks.why_not}.`);
    const signal = restart(this);
    const off = () => {
      for (const control of this.querySelectorAll("button, input")) {
        control.disabled = marks.why_not !== null;
        if (marks.why_not !== null) control.title = escaped(marks.why_not);
      }
    };
    off();
    if (!count) return;
    const {kinds} = marks.count ? await api(`/api/${state().store}/marked`, {q}, signal).catch(() => ({kinds: []})) : {kinds: []};
    if (signal.aborted) return;
    const of = (key, value) => kinds.find((kind) => kind.key === key && kind.value === value)?.count ?? 0;
    const pressed = (number) => (number === count ? "true" : number ? "mixed" : "false");
    this.drop.ariaPressed = pressed(of("drop", ""));
    this.clear.hidden = !kinds.length;
    const labels = kinds.filter(({key}) => key === "label").map(({value}) =>
      button(`→ ${escaped(value)} ×`, () => this.change({remove: "label"}), {ariaLabel: "Remove label", title: "Take the new label back"}));
    const tags = marks.tags.map((tag) => button(escaped(tag), () => this.change(of("tag", tag) === count ? {untag: tag} : {tag}),
      {ariaPressed: pressed(of("tag", tag)), title: `Tag ${escaped(tag)}`}));
    this.given.replaceChildren(...labels, ...tags);
    off();
  }

  /** Take over what the user typed into the bar of the same record while the server made a change. */
  keep(before, focused) {
    for (const name of ["label", "tag"]) {
      if (before[name].value.trim() === before.sent) continue;
      this[name].value = before[name].value;
      if (before[name] === focused) this[name].focus();
    }
  }

  /** Change the marks. With `toggles`, keep the records if all of them are marked to drop. */
  async change(what, toggles = false) {
    const {store} = state(), from = document.activeElement;
    this.sent = String(what.label ?? what.tag ?? "");
    if (!await (toggles ? toggleDrop(store, this.q, this.count) : mark(store, this.q, what, this.count))) return;
    if (document.activeElement === from) from?.blur(); // keys move in the grid again
    go({selected: null}, {replace: true});
  }
}
customElements.define("db-marks", Marks);
