/** A size or a field in the side bar: a histogram of numbers, or the values of texts and bools. A click filters the search. */
import {exact} from "./bars.js";
import {api, counted, escaped, make, refresh, sized, state, stores} from "./app.js";
import {comparing, filter, key as named, quoted, words} from "./query.js";

const MANY = 20; // up to this number, values are listed even if each has only one record

class Field extends HTMLElement {
  /** Make the field of a column. Its values are requested when the field is opened. */
  connectedCallback() {
    const name = (this.name = this.getAttribute("name"));
    this.kind = this.getAttribute("kind");
    this.bars = make("db-bars", {name, hidden: true});
    this.values = make("div", {class: "values"});
    this.note = make("p", {class: "muted"});
    this.constant = make("span", {class: "constant"});
    this.containing = make("input", {type: "search", ariaLabel: `Text in ${name}`, placeholder: "contains…", autocomplete: "off",
      hidden: this.kind !== "text",
      onchange: () => this.ask([this.containing.value && `${named(name)}~${quoted(this.containing.value)}`])});
    this.details = make("details", {open: this.hasAttribute("open"), ontoggle: () => this.closest("#sidebar")?.show(state())},
      make("summary", {}, escaped(name), this.constant), this.containing, this.bars, this.values, this.note);
    this.append(this.details);
  }

  /** Replace the conditions on the field by others, and search. */
  ask(added) { filter((word) => comparing(this.name, this.kind === "bool").test(word), added.filter(Boolean)); }

  async show({store, q}) {
    const {name, kind} = this;
    // The counts ignore the conditions on the field itself, so its other values stay visible.
    q = words(q).filter((word) => !comparing(name, kind === "bool").test(word)).join(" ");
    const key = `${store} ${q} ${state().q} ${stores[store].marks.revision}`;
    if (!this.details.open) return;
    await refresh(this, key, async (signal) => {
      const found = await api(`/api/${store}/field`, {name, q}, signal);
      if (!signal.aborted) this.draw(found);
    }, (why) => (this.note.textContent = why));
  }

  draw({values = [], different, of, ...data}) {
    const {name, kind} = this;
    const chosen = words(state().q), most = Math.max(1, ...values.map(([, count]) => count)), {counts, edges} = data;
    const isNumber = counts !== undefined, isSame = isNumber ? edges[0] === edges.at(-1) : different === 1 && most === of;
    this.hidden = isNumber && !counts.length && kind === "size";
    this.details.classList.toggle("same", isSame); // one line of text instead of one bar
    this.constant.textContent = !isSame ? "" : isNumber ? this.format(edges)(edges[0]) : escaped(values[0][0]).slice(0, 300);
    this.bars.hidden = !isNumber || !counts.length || isSame;
    if (!this.bars.hidden) {
      const whole = name !== "aspect" && edges.every(Number.isInteger);
      const choose = (from, to) => this.ask([from !== null && `${named(name)}>=${from}`, to !== null && `${named(name)}<${to}`]);
      this.bars.draw(data, searched(chosen, name), whole, this.format(edges), choose);
    }
    const isDistinct = values.length > MANY && most === 1;
    if (isDistinct || isSame) values = [];
    this.values.replaceChildren(...values.map(([text, count]) => {
      const word = `${named(name)}=${quoted(text)}`, bar = make("span", {class: "share"});
      const same = kind === "bool" && text === "true" ? [word, named(name)] : [word];
      const isChosen = () => words(state().q).some((each) => same.includes(each)); // a second click may come before the new counts
      bar.style.width = `${(100 * count) / most}%`;
      return make("button", {ariaPressed: String(isChosen()), onclick: () => this.ask(isChosen() ? [] : [word])},
        bar, make("span", {class: "name"}, escaped(text).slice(0, 300)), make("span", {class: "number"}, counted(count)));
    }));
    this.note.textContent = isDistinct ? `${counted(different)} different values` :
      different > values.length && !isSame ? `The ${counted(values.length)} most frequent of ${counted(different)} values.` : "";
  }

  /** Return the function that shows a value between some edges as text. */
  format(edges) { return this.name === "bytes" && edges.at(-1) - edges[0] > 10_000 ? sized : exact; }
}
customElements.define("db-field", Field);

/** Return a function: whether some value of a bar fulfils the words that compare a field. Only the last bar contains its upper edge. */
function searched(all, name) {
  const compared = all.filter((word) => comparing(name).test(word) && !/^(-|not\s)|!=/.test(word));
  const bounds = compared.map((word) => word.match(/([<>]?=?)\s*(-?[\d.]+(?:e[+-]?\d+)?)$/i)).filter(Boolean);
  return (least, greatest, isLast) => bounds.every(([, sign, text]) => {
    const number = Number(text), reaches = greatest > number || (isLast && sign !== ">" && greatest === number);
    return (sign.startsWith("<") || reaches) && (sign.startsWith(">") || (sign === "<" ? least < number : least <= number));
  });
}
