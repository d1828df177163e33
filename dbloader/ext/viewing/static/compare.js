/** Labels compared with another column, such as a model's predictions: pictures of the classes that are confused, and a table. */
import {amount, api, counted, escaped, go, labelName, link, make, refresh, stores, title} from "./app.js";
import {empty, pictured} from "./icons.js";
import {classWord, key, quoted, unfiltered, words} from "./query.js";

const [PAIRS, PICTURES] = [12, 3]; // confused pairs that are shown at a time, and the pictures of each

/** Return the columns of a store that can be compared with the label. */
export const comparable = (store) =>
  Object.keys(stores[store].columns).filter((name) => /^(int|text)$/.test(stores[store].columns[name]) && !name.startsWith("mark."));

class Compare extends HTMLElement {
  async show(now) {
    title("labels");
    const names = comparable(now.store);
    const column = [now.column, "prediction", names.length > 1 ? "" : names[0]].find((name) => names.includes(name));
    const key = `${now.store} ${now.q} ${column} ${/mark\.|duplicates\./.test(now.q) && stores[now.store].marks.revision}`;
    if (key === this.key) return;
    const choice = make("select", {ariaLabel: "Column", onchange: (event) => go({column: event.target.value}, {replace: true})},
      ...column ? [] : [make("option", {value: ""}, "choose a field")],
      ...names.map((name) => make("option", {selected: name === column}, escaped(name))));
    const nothing = names.length ? "" : "This store has no field of integers or text to compare with the labels.";
    const status = make("p", {role: "status"}, column ? "Counting…" : nothing);
    const body = make("div");
    this.replaceChildren(make("header", {}, make("h1", {}, "Labels compared"),
      names.length ? make("p", {class: "row"}, "with ", choice) : null), status, body);
    await refresh(this, key, async (signal) => {
      if (!column) return;
      const found = await api(`/api/${now.store}/compare`, {q: now.q, column}, signal);
      if (signal.aborted) return;
      const differ = found.total - found.equal;
      status.textContent = `Label and ${escaped(column)} agree in ${counted(found.equal)} of ${counted(found.total)} records, ` +
        `and differ in ${counted(differ)}${now.q ? " among the images of this search" : ""}. ` +
        "Records without a label or a value are not counted.";
      const to = {view: "review", at: null, column: null, q: [...words(now.q), "labels.differ"].join(" "),
        sort: stores[now.store].columns.loss ? "-loss" : null};
      const review = column === "prediction" ? link(to, `Review these ${amount(differ, "record")}`) : null;
      const none = found.total ? "All labels agree" : "No record has both a label and a value";
      body.replaceChildren(...differ ?
        [make("p", {class: "links"}, review), ...this.pairs(now, column, found, signal), ...this.matrix(now, column, found)] :
        [empty("compare", none, "", now.q ? unfiltered() : null)]);
    }, (why) => Object.assign(status, {className: "error", textContent: why}));
  }

  /** Return the query that finds the records with a label and a value. */
  query(now, column, [label, value]) {
    return [...words(now.q), classWord(now.store, label), `${key(column)}=${quoted(value)}`].join(" ");
  }

  /** Show the most frequent pairs, each with the pictures of its records with the greatest loss. */
  pairs(now, column, {pairs, different}, signal) {
    const list = make("div", {class: "cards confused"}), sort = stores[now.store].columns.loss ? "-loss" : "";
    const card = (pair) => {
      const q = this.query(now, column, pair), four = make("div", {class: "four three"});
      api(`/api/${now.store}/rows`, {q, sort, start: 0, count: PICTURES}, signal)
        .then(({rows}) => four.append(...rows.map(([index]) => pictured(now.store, index))), () => {});
      const [label, value] = pair.map((each) => labelName(now.store, each));
      const both = link({view: null, at: null, column: null, q, sort},
        make("span", {class: "chip"}, label), "→", make("span", {class: "chip differs"}, value));
      return make("section", {class: "card"}, make("h3", {}, both, make("b", {}, counted(pair[2]))), four);
    };
    const show = () => {
      list.append(...pairs.slice(list.childElementCount, list.childElementCount + PAIRS).map(card));
      more.hidden = list.childElementCount >= pairs.length;
    };
    const more = make("button", {onclick: show}, "Show more");
    show();
    const heading = pairs.length < different ?
      `Confused pairs: the ${counted(pairs.length)} most frequent of ${counted(different)}` : amount(different, "confused pair");
    return [make("h2", {}, heading), list, make("p", {class: "links"}, more)];
  }

  /** Show the classes with the most records that differ as a table. */
  matrix(now, column, {cells, worst}) {
    const {classes} = stores[now.store];
    const own = (value) => (typeof value === "string" && classes.includes(value) ? classes.indexOf(value) : value);
    const at = new Map(cells.map((cell) => [JSON.stringify([cell[0], own(cell[1])]), cell]));
    const isSame = ([label, value]) => own(value) === label;
    const hasSame = cells.some(isSame);
    const values = new Set(cells.map(([, value]) => own(value)));
    const labels = new Set(cells.map(([label]) => label));
    const [rows, across] = hasSame ? [worst, worst] :
      [worst.filter((label) => labels.has(label)), worst.filter((value) => values.has(value))];
    const most = (same) => Math.max(1, ...cells.filter((cell) => isSame(cell) === same).map(([, , count]) => count));
    const [good, bad] = [most(true), most(false)];
    const name = (value) => labelName(now.store, value);
    const head = (value, scope) => make("th", {scope, title: name(value)}, make("span", {}, name(value)));
    const body = rows.map((label) => make("tr", {}, head(label, "row"), ...across.map((value) => {
      const cell = at.get(JSON.stringify([label, value]));
      if (!cell) return make("td");
      const one = make("td", {class: isSame(cell) ? "same" : "differs"},
        link({view: null, at: null, column: null, q: this.query(now, column, cell)}, counted(cell[2])));
      one.firstChild.ariaLabel = `${name(label)}, ${escaped(column)} ${name(value)}: ${amount(cell[2], "record")}`;
      one.style.setProperty("--share", Math.sqrt(cell[2] / (isSame(cell) ? good : bad)));
      return one;
    })));
    const heads = make("tr", {}, make("td", {}, `label ↓, ${escaped(column)} →`), ...across.map((value) => head(value, "col")));
    const table = make("table", {}, make("thead", {}, heads), make("tbody", {}, ...body));
    table.style.setProperty("--count", across.length);
    const isPart = rows.length < new Set([...classes, ...rows]).size && hasSame && worst.length === 24;
    return [make("h2", {}, isPart ? `The ${worst.length} classes with the most differences` : "All classes"),
      make("div", {class: "matrix", tabIndex: 0, role: "region", ariaLabel: "Labels and values"}, table)];
  }
}
customElements.define("db-compare", Compare);
