/** Marks: what people decide about records. The server keeps them in a file beside the store, which `dbloader copy --marks` applies. */
import {amount, ask, counted, errorOf, escaped, go, link, make, notice, state, stores} from "./app.js";
import {code} from "./record.js";

const HOLD_MS = 400; // a press of this length selects a record; browsers open their menu at 500 ms
const STILL = 10; // px that the finger may move during a long press

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

/** Show how many records of a store are marked, and the command that applies the marks. */
export function showMarks(section, store) {
  const {count, command} = stores[store].marks;
  section.hidden = !count;
  const words = Object.keys(stores[store].columns).filter((name) => name.startsWith("mark."))
    .map((name) => (name === "mark.drop" ? name : `${name}!=""`));
  section.replaceChildren(make("h2", {}, "Marks"), make("p", {}, `${counted(count)} marked: `,
    link({view: null, index: null, at: null, q: words.join(" or ")}, "show")), code(command));
}

/** Mark the records of a query. Return whether the server has done it; otherwise the page shows the reason. */
export async function mark(store, q, what) {
  const reply = await ask(`/api/${store}/marks`, undefined, {method: "POST", body: JSON.stringify({q, ...what})});
  if (reply.ok) stores[store] = await reply.json();
  else notice(escaped(await errorOf(reply)));
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
    const tag = () => this.tag.value && this.change({tag: this.tag.value.trim()});
    for (const [input, run] of [[this.label, label], [this.tag, tag]]) input.onkeydown = (event) => event.key === "Enter" && run();
    this.why = make("span", {class: "muted"});
    this.append(button("Drop", () => this.change({drop: true})), make("span", {}, this.label, this.names, button("Set label", label)),
      make("span", {}, this.tag, button("Tag", tag)), button("Clear marks", () => this.change({clear: true})), this.why);
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

  async change(what) {
    const {store} = state();
    if (what.clear && this.count > 1 && !confirm(`Remove all marks of ${amount(this.count, "record")}?`)) return;
    if (!await mark(store, this.q, what)) return;
    notice(`${amount(this.count, "record")}: ${what.clear ? "marks removed" : escaped(what.label ?? what.tag ?? "drop")}`);
    document.activeElement?.blur(); // keys move in the grid again
    go({selected: null}, {replace: true});
  }
}
customElements.define("db-marks", Marks);
