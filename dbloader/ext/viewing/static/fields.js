/** A field of the side bar: a histogram of numbers, or the values of texts and bools. A click filters the search. */
import {exact} from "./bars.js";
import {api, counted, escaped, make, state, stores} from "./app.js";
import {comparing, filter, filterRange, key as named, quoted, words} from "./query.js";

const MANY = 20; // up to this number, values are listed even if each has only one record

class Field extends HTMLElement {
  /** Make the field of a column. Its values are requested when the field is opened. */
  connectedCallback() {
    const name = this.getAttribute("name"), kind = this.getAttribute("kind");
    this.key = "";
    this.bars = make("db-bars", {name, hidden: true});
    this.values = make("div", {class: "values"});
    this.note = make("p", {class: "muted"});
    const part = make("input", {type: "search", ariaLabel: `Text in ${name}`, placeholder: "contains…", hidden: kind !== "text", autocomplete: "off",
      onchange: () => filter((word) => comparing(name).test(word), part.value ? [`${named(name)}~${quoted(part.value)}`] : [])});
    this.details = make("details", {open: this.hasAttribute("open"), ontoggle: () => this.show(state())},
      make("summary", {}, escaped(name)), part, this.bars, this.values, this.note);
    this.append(this.details);
  }

  async show({store, q, axes}) {
    const name = this.getAttribute("name"), kind = this.getAttribute("kind");
    // The counts of values ignore the choice of a value, so the other values stay visible.
    if (kind === "text" || kind === "bool") q = words(q).filter((word) => !comparing(name, kind === "bool").test(word)).join(" ");
    const key = `${store} ${axes} ${q} ${state().q} ${stores[store].marks.revision}`;
    if (!this.details.open || key === this.key) return;
    this.key = key;
    this.stop?.abort();
    const {signal} = (this.stop = new AbortController());
    try {
      const found = await api(`/api/${store}/field`, {name, q, axes}, signal);
      if (!signal.aborted) this.draw(name, found);
    } catch (error) {
      if (signal.aborted) return;
      this.key = "";
      this.note.textContent = escaped(error.message);
    }
  }

  draw(name, {values = [], different, ...data}) {
    const chosen = words(state().q), most = Math.max(1, ...values.map(([, count]) => count));
    this.bars.hidden = !data.counts?.length;
    if (!this.bars.hidden) this.bars.draw(data, data.edges.every(Number.isInteger), exact, (from, to) => filterRange(name, from, to));
    const isDistinct = values.length > MANY && most === 1;
    if (isDistinct) values = [];
    const isBool = this.getAttribute("kind") === "bool", old = comparing(name, isBool);
    this.values.replaceChildren(...values.map(([text, count]) => {
      const word = `${named(name)}=${quoted(text)}`, bar = make("span", {class: "share"});
      const isChosen = chosen.includes(word) || (isBool && text === "true" && chosen.includes(named(name)));
      bar.style.width = `${(100 * count) / most}%`;
      return make("button", {ariaPressed: String(isChosen), onclick: () => filter((other) => old.test(other), isChosen ? [] : [word])},
        bar, make("span", {class: "name"}, escaped(text).slice(0, 300)), make("span", {class: "number"}, counted(count)));
    }));
    this.note.textContent = isDistinct ? `${counted(different)} different values` :
      different > values.length ? `The ${counted(values.length)} most frequent of ${counted(different)} values.` : "";
  }
}
customElements.define("db-field", Field);
