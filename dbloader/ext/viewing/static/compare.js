/** Labels compared with another column, such as a model's predictions: pictures of the classes that are confused, and a table. */
import {amount, api, counted, escaped, go, labelName, link, make, refresh, stores, title} from "./app.js";
import {empty, pictured} from "./icons.js";
import {classWord, key, quoted, unfiltered, words} from "./query.js";

const [PAIRS, PICTURES] = [12, 3]; // confused pairs that are shown at a time, and the pictures of each

/** Return the columns of a store that can be compared with the label. */
export const comparable = (store) =>
  Object.entries(stores[store].columns).filter(([name, kind]) => (kind === "int" || kind === "text") && !name.startsWith("mark.")).map(([name]) => name);

class Compare extends HTMLElement {
  async show(now) {
    title("labels");
    const names = comparable(now.store);
    const column = [now.column, "prediction", names.length > 1 ? "" : names[0]].find((name) => names.includes(name));
    const key = `${now.store} ${now.q} ${column} ${/mark\.|duplicates\./.test(now.q) && stores[now.store].marks.revision}`;
    if (key === this.key) return;
    const choice = make("select", {ariaLabel: "Column", onchange: (event) => go({column: event.target.value}, {replace: true})},
      ...column || !names.length ? [] : [make("option", {value: ""}, "choose a field")], ...names.map((name) => make("option", {selected: name === column}, escaped(name))));
    const [status, body] = [make("p", {role: "status"}, column ? "Counting…" : names.length ? "" : "This store has no field of integers or text to compare with the labels."), make("div")];
    this.replaceChildren(make("header", {}, make("h1", {}, "Labels compared"), names.length ? make("p", {class: "row"}, "with ", choice) : null), status, body);
    await refresh(this, key, async (signal) => {
      if (!column) return;
      const found = await api(`/api/${now.store}/compare`, {q: now.q, column}, signal);
      if (signal.aborted) return;
      const differ = found.total - found.equal;
      status.textContent = `Label and ${escaped(column)} agree in ${counted(found.equal)} of ${counted(found.total)} records, and differ in ${counted(differ)}` +
        `${now.q ? " among the images of this search" : ""}. Records without a label or a value are not counted.`;
      const to = {view: "review", at: null, column: null, q: [...words(now.q), "labels.differ"].join(" "), sort: stores[now.store].columns.loss ? "-loss" : null};
      body.replaceChildren(...differ ? [make("p", {class: "links"}, column === "prediction" ? link(to, `Review these ${amount(differ, "record")}`) : null),
        ...this.pairs(now, column, found, signal), ...this.matrix(now, column, found)] :
        [empty("compare", found.total ? "All labels agree" : "No record has both a label and a value", "", now.q ? unfiltered() : null)]);
    }, (why) => Object.assign(status, {className: "error", textContent: why}));
  }

  /** Return the query that finds the records with a label and a value. */
  query(now, column, [label, value]) {
    return [...words(now.q), classWord(now.store, label), `${key(column)}=${quoted(value)}`].join(" ");
  }

  /** Show the most frequent pairs, each with the pictures of its records with the greatest loss. */
  pairs(now, column, {pairs, different}, signal) {
    const list = make("div", {class: "cards confused"}), sort = stores[now.store].columns.loss ? "-loss" : "";
    const show = () => list.append(...pairs.slice(list.childElementCount, list.childElementCount + PAIRS).map((pair) => {
      const q = this.query(now, column, pair), four = make("div", {class: "four three"});
      api(`/api/${now.store}/rows`, {q, sort, start: 0, count: PICTURES}, signal).then(({rows}) => four.append(...rows.map(([index]) => pictured(now.store, index))), () => {});
      return make("section", {class: "card"}, make("h3", {}, link({view: null, at: null, column: null, q, sort},
        make("span", {class: "chip"}, labelName(now.store, pair[0])), "→", make("span", {class: "chip differs"}, labelName(now.store, pair[1]))), make("b", {}, counted(pair[2]))), four);
    }));
    const more = make("button", {onclick: () => { show(); more.hidden = list.childElementCount >= pairs.length; }}, "Show more");
    show();
    more.hidden = list.childElementCount >= pairs.length;
    return [make("h2", {}, pairs.length < different ? `Confused pairs: the ${counted(pairs.length)} most frequent of ${counted(different)}` :
      amount(different, "confused pair")), list, make("p", {class: "links"}, more)];
  }

  /** Show the classes with the most records that differ as a table. */
  matrix(now, column, {cells, worst}) {
    const {classes} = stores[now.store], own = (value) => (typeof value === "string" && classes.includes(value) ? classes.indexOf(value) : value);
    const at = new Map(cells.map((cell) => [JSON.stringify([cell[0], own(cell[1])]), cell]));
    const isSame = ([label, value]) => own(value) === label, hasSame = cells.some(isSame), values = new Set(cells.map(([, value]) => own(value))), labels = new Set(cells.map(([label]) => label));
    const [rows, across] = hasSame ? [worst, worst] : [worst.filter((label) => labels.has(label)), worst.filter((value) => values.has(value))];
    const most = (same) => Math.max(1, ...cells.filter((cell) => isSame(cell) === same).map(([, , count]) => count)), [good, bad] = [most(true), most(false)];
    const name = (value) => labelName(now.store, value);
    const head = (value, scope) => make("th", {scope, title: name(value)}, make("span", {}, name(value)));
    const body = rows.map((label) => make("tr", {}, head(label, "row"), ...across.map((value) => {
      const cell = at.get(JSON.stringify([label, value]));
      if (!cell) return make("td");
      const one = make("td", {class: isSame(cell) ? "same" : "differs"}, link({view: null, at: null, column: null, q: this.query(now, column, cell)}, counted(cell[2])));
      one.firstChild.ariaLabel = `${name(label)}, ${escaped(column)} ${name(value)}: ${amount(cell[2], "record")}`;
      one.style.setProperty("--share", Math.sqrt(cell[2] / (isSame(cell) ? good : bad)));
      return one;
    })));
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("td", {}, `label ↓, ${escaped(column)} →`), ...across.map((value) => head(value, "col")))), make("tbody", {}, ...body));
    table.style.setProperty("--count", across.length);
    return [make("h2", {}, rows.length < new Set([...classes, ...rows]).size && hasSame && worst.length === 24 ? `The ${worst.length} classes with the most differences` : "All classes"),
      make("div", {class: "matrix", tabIndex: 0, role: "region", ariaLabel: "Labels and values"}, table)];
  }
}
customElements.define("db-compare", Compare);
