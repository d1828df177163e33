/** A table of labels and another column, such as a model's predictions. It shows which classes are confused. */
import {api, className, counted, escaped, go, link, make, stores, title} from "./app.js";
import {classWord, key, quoted, words} from "./query.js";

const MATRIX = 24; // most labels, and most values, that a table shows

/** Return the columns of a store that can be compared with the label. */
export const comparable = (store) =>
  Object.entries(stores[store].columns).filter(([name, kind]) => (kind === "int" || kind === "text") && !name.startsWith("mark.")).map(([name]) => name);

class Compare extends HTMLElement {
  async show(now) {
    title("labels");
    const names = comparable(now.store);
    const column = [now.column, "prediction", names.length > 1 ? "" : names[0]].find((name) => names.includes(name));
    this.stop?.abort();
    const {signal} = (this.stop = new AbortController());
    const choice = make("select", {ariaLabel: "Column", onchange: (event) => go({column: event.target.value}, {replace: true})},
      ...column || !names.length ? [] : [make("option", {value: ""}, "choose a field")], ...names.map((name) => make("option", {selected: name === column}, escaped(name))));
    const [status, body] = [make("p", {role: "status"}, column ? "Counting…" : names.length ? "" : "This store has no field of integers or text to compare with the labels."), make("div")];
    this.replaceChildren(make("h1", {}, "Labels compared"), make("p", {class: "row"}, "Label and ", choice), status, body);
    if (!column) return;
    try {
      const found = await api(`/api/${now.store}/compare`, {q: now.q, column}, signal);
      if (signal.aborted) return;
      status.textContent = `Label and ${escaped(column)} agree in ${counted(found.equal)} of ${counted(found.total)} records, and differ in ${counted(found.total - found.equal)}` +
        `${now.q ? " among the images of this search" : ""}. Records without a label or a value are not counted.`;
      body.replaceChildren(...this.draw(now, column, found));
    } catch (error) {
      if (signal.aborted) return;
      status.className = "error";
      status.textContent = escaped(error.message);
    }
  }

  draw(now, column, {pairs, different}) {
    const shown = (label) => escaped(className(now.store, label));
    const isSame = ([label, value]) => value === label || value === stores[now.store].classes?.[label];
    const cell = ([label, value, count]) =>
      link({view: null, at: null, column: null, q: [...words(now.q), classWord(now.store, label), `${key(column)}=${quoted(value)}`].join(" ")}, counted(count));
    const differing = pairs.filter((pair) => !isSame(pair));
    const name = (value) => (typeof value === "number" ? shown(value) : escaped(value));
    const list = make("table", {class: "pairs-list"}, make("thead", {}, make("tr", {}, ...["Label", escaped(column), "Records"].map((text) => make("th", {scope: "col"}, text)))),
      make("tbody", {}, ...differing.map((pair) => make("tr", {}, make("td", {}, shown(pair[0])), make("td", {}, name(pair[1])), make("td", {}, cell(pair))))));
    const order = (n) => [...new Set(pairs.map((pair) => pair[n]))].sort((a, b) => (typeof a === "number" ? a - b : a < b ? -1 : 1));
    const [labels, values] = [order(0), order(1)];
    const note = differing.length < different ? [make("p", {class: "muted"}, `The ${counted(differing.length)} most frequent of ${counted(different)} pairs.`)] : [];
    const found = [make("h2", {}, "Pairs that differ"), ...note, list];
    if (labels.length > MATRIX || values.length > MATRIX || differing.length < different) return found;
    const at = new Map(pairs.map((pair) => [`${pair[0]} ${pair[1]}`, pair]));
    const rows = labels.map((label) => {
      const all = values.map((value) => at.get(`${label} ${value}`));
      const sum = all.reduce((total, pair) => total + (pair?.[2] ?? 0), 0);
      return make("tr", {}, make("th", {scope: "row"}, shown(label)), ...all.map((pair) => {
        const one = make("td", {class: pair && !isSame(pair) ? "differs" : ""}, pair ? cell(pair) : "");
        one.style.setProperty("--share", pair ? pair[2] / sum : 0);
        return one;
      }));
    });
    const head = make("tr", {}, make("th", {scope: "col"}, `Label \\ ${escaped(column)}`), ...values.map((value) => make("th", {scope: "col"}, name(value))));
    return [make("div", {class: "matrix", tabIndex: 0, role: "region", ariaLabel: "Labels and values"}, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))), ...found];
  }
}
customElements.define("db-compare", Compare);
