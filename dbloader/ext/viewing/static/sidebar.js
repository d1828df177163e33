/** The search at the top, and the side bar: links to the views, classes, histograms, formats and events. */
import "./fields.js";
import {api, className, counted, escaped, find, go, link, listing, make, refresh, state, stores, url} from "./app.js";
import {comparable} from "./compare.js";
import {icon} from "./icons.js";
import {keys} from "./keys.js";
import {chips, classesIn, classWord, filter, key as named, quoted, words} from "./query.js";
import {Scroller} from "./scroll.js";

const PAGES = {overview: "Overview", grid: "Images", review: "Review", training: "What training sees", compare: "Labels compared",
  report: "Report of the conversion", duplicates: "Duplicates", sides: "Side by side"};
const OPEN = 6; // if there are more fields, all fields are closed at first
const NARROW = matchMedia("(max-width: 760px)"); // as in style.css
const SIZES = ["width", "height", "aspect", "bytes"];
const NEXT = {label: "count", count: "rarest", rarest: "label"}; // orders of the classes
const FILTERED = ["grid", "review", "compare"]; // the views that show what a search finds
const OFFERED = 50; // most completions

class Sidebar extends HTMLElement {
  connectedCallback() {
    this.all = [];
    this.labels = this.all; // the listed classes
    const clear = () => go({q: this.search.value = "", at: null});
    this.search = make("input", {id: "search", onsearch: () => this.search.value || clear(), type: "search", autocomplete: "off",
      spellcheck: false, placeholder: "Search: class:cat width<256", ariaLabel: "Search",
      "aria-describedby": "search-error", oninput: () => this.complete(), onkeydown: (event) => {
        if (event.key === "Escape") clear();
        if (event.key !== "Enter") return;
        go({view: null, index: null, at: null, q: this.search.value.trim()});
        find("#main").focus(); // the grid takes the focus when it has records
      }});
    this.error = make("p", {id: "search-error", class: "error", role: "alert"});
    this.offers = make("datalist", {id: "words"});
    this.search.setAttribute("list", "words");
    this.values = new Map(); // by store and field: its most frequent values
    this.pages = make("nav", {"aria-label": "Pages"});
    this.typed = make("input", {id: "find-class", type: "search", placeholder: "Find a class", ariaLabel: "Find a class",
      autocomplete: "off", oninput: () => this.list()});
    this.order = make("button", {id: "order", title: "Change the order", onclick: () => this.list(NEXT[this.order.value])});
    this.listed = make("div", {id: "classes", ariaLabel: "Classes", ariaMultiSelectable: "true",
      title: "Ctrl-click or the box adds a class. Shift-click adds a range."});
    this.anchor = 0; // the row that was chosen last
    this.missing = make("p", {class: "muted", role: "status"});
    this.classes = make("section", {hidden: true}, make("h2", {}, "Classes"), make("div", {class: "row"}, this.typed, this.order),
      this.listed, this.missing);
    this.scroller = new Scroller(this.listed, {tile: () => this.tile(), fill: (cell) => this.fill(cell)});
    this.listed.onkeydown = (event) => this.pressed(event);
    this.kinds = make("section");
    this.files = make("section");
    this.facts = make("div", {class: "facts"}, this.classes, this.fields = make("section"), this.kinds, this.files);
    this.chips = make("div", {class: "chips", ariaLabel: "Conditions", role: "group",
      onclick: (event) => event.target === this.chips && this.search.focus()});
    find("#finder").append(icon("search"), this.search, this.offers, this.chips, this.error);
    this.append(this.pages, this.facts);
    NARROW.onchange = () => this.list();
    keys({"/": ["Search", () => { this.search.focus(); this.search.select(); }]});
  }

  async show(now) {
    const pages = Object.keys(PAGES);
    if (!this.pages.children.length) this.pages.append(...pages.map((view) => link({view, index: null}, icon(view), PAGES[view])));
    pages.forEach((view, n) => {
      this.pages.children[n].href = url({view, index: null});
      this.pages.children[n].ariaCurrent = view === now.view ? "page" : null;
      this.pages.children[n].hidden = (view === "compare" && !comparable(now.store).length) || (view === "sides" && stores.length < 2);
    });
    if (this.stored !== stores[now.store]) { // another store, or other marks
      const columns = Object.entries((this.stored = stores[now.store]).columns).filter(([name]) => !/^(mark|duplicates)\./.test(name));
      find("#class-names").replaceChildren(...this.stored.classes.map((name) => make("option", {value: name})));
      this.fields.replaceChildren(...SIZES.map((name) => make("db-field", {name, kind: "size", open: true})),
        ...columns.map(([name, kind]) => make("db-field", {name, kind, open: columns.length <= OPEN || null})));
    }
    this.chips.replaceChildren(...chips());
    this.facts.hidden = !FILTERED.includes(now.view);
    if (this.facts.hidden) return void (this.search.value = now.q);
    const key = `${now.store} ${now.q} ${stores[now.store].marks.revision}`;
    if (key === this.key ? this.facts.ariaBusy === "true" : !await this.summarize(now, key)) return; // or an earlier call shows the fields
    for (const field of this.fields.querySelectorAll("db-field")) field.show({...now, q: this.q});
  }

  /** Show the counts of a search; of all records if the search is wrong. Return whether they are shown. */
  async summarize(now, key) {
    this.search.value = this.q = now.q;
    this.error.textContent = "";
    this.facts.ariaBusy = "true";
    const count = (q, signal) =>
      api(`/api/${now.store}/summary`, {q, among: words(q).filter((word) => !classesIn(word).length).join(" ")}, signal);
    return refresh(this, key, async (signal) => {
      const facts = await count(now.q, signal).catch((error) => {
        if (signal.aborted || !now.q) throw error;
        const [what, ...how] = escaped(error.message).replace(/^query, letter \d+: /, "").replace(/^this store has no/, "No").split("; ");
        this.error.replaceChildren(make("strong", {}, what), make("span", {class: "muted"}, how.join("; ")));
        if (document.activeElement === find("#main")) this.search.focus();
        return count(this.q = "", signal);
      });
      if (signal.aborted) return;
      this.facts.ariaBusy = "false";
      this.draw({...now, q: this.q}, facts);
    }, (why) => {
      this.error.textContent = why;
      this.facts.hidden = true;
    });
  }

  draw(now, facts) {
    const found = new Map(facts.labels);
    const labels = Object.keys(stores[now.store].label_counts ?? {}).map(Number); // label_counts is null if the store has too many labels
    this.all = labels.length ? [...found.has(null) ? [null] : [], ...labels].map((label) => [label, found.get(label) ?? 0]) : facts.labels;
    this.classes.hidden = !this.all.length;
    this.list();
    const button = (word, text, count) =>
      make("button", {onclick: () => filter((old) => old === word, [word])}, `${text} `, make("b", {}, counted(count)));
    const kinds = Object.entries(facts.formats ?? {})
      .map(([format, count]) => make("span", {}, `${escaped(format)} `, make("b", {}, counted(count))));
    const events = Object.entries(facts.events).filter(([, count]) => count).map(([event, count]) => button(event, event, count));
    this.kinds.replaceChildren(make("h2", {}, "Files"), make("div", {class: "chips"}, ...kinds, ...events),
      make("p", {class: "error"}, escaped(facts.problem ?? "")));
    this.kinds.hidden = !kinds.length && !events.length && !facts.problem;
    this.files.replaceChildren(make("h2", {}, "Download the list"), make("p", {class: "row"}, listing(now.store, now.q)),
      make("p", {class: "muted"}, `${counted(facts.count)} records, for dbloader copy --select, --drop or --labels.`));
  }

  /** Offer words that complete the last word of the search: classes, fields, and values of a field. */
  async complete() {
    const {store} = state(), {classes, columns} = stores[store], typed = this.search.value;
    const [, sign, last] = (typed.match(/(?:"[^"]*"?|[^\s"])+|\s+/g)?.at(-1) ?? "").trim().match(/^([(-]*)(.*)$/s);
    const before = typed.slice(0, typed.length - last.length), field = last.match(/^"?([^="]+)"?=/)?.[1], place = `${store} ${field}`;
    if (field && ["text", "bool"].includes(columns[field]) && !this.values.has(place))
      this.values.set(place, await api(`/api/${store}/field`, {name: field, q: ""})
        .then(({values}) => values.map(([text]) => text), () => []));
    if (this.search.value !== typed) return; // the user has typed on
    const all = field && this.values.has(place) ? this.values.get(place).map((text) => `${named(field)}=${quoted(text)}`) :
      [...classes.map((name) => `class:${quoted(name)}`), ...Object.entries(columns).map(([name, kind]) => (kind === "bool" ? named(name) :
        `${named(name)}${kind === "text" ? "=" : ">"}`)), ...SIZES.map((name) => `${name}<`), "index:", "damaged", "repaired"];
    const sought = last.toLowerCase();
    const offered = sought ? all.filter((word) => word.toLowerCase().includes(sought) && word !== last).slice(0, OFFERED) : [];
    this.offers.replaceChildren(...offered.map((word) => make("option", {value: before + word})));
  }

  /** Show the classes whose names contain the typed text, in one of the orders. */
  list(order = this.order.value || "label") {
    const {store} = state();
    this.order.value = order;
    this.order.textContent = order === "rarest" ? "rarest first" : `by ${order}`;
    const typed = this.typed.value.toLowerCase(), {active, top} = this.scroller, kept = this.labels[active]?.[0];
    this.labels = this.all.filter(([label]) => (className(store, label) || "no label").toLowerCase().includes(typed));
    if (order !== "label") this.labels.sort((one, other) => (order === "rarest" ? 1 : -1) * (one[1] - other[1]));
    this.missing.textContent = this.all.length && !this.labels.length ? `No class contains “${escaped(this.typed.value)}”` : "";
    this.most = this.labels.reduce((most, [, count]) => Math.max(most, count), 1);
    const high = NARROW.matches ? 44 : 26;
    this.listed.style.height = `${high * Math.min(this.labels.length, 12)}px`;
    this.scroller.reset(this.labels.length);
    this.scroller.layout(0, high);
    this.scroller.active = Math.max(0, this.labels.findIndex(([label]) => label === kept));
    if (this.listed.clientWidth) this.scroller.to(top);
  }

  tile() {
    const [name, count, bar] = [make("span", {class: "name"}), make("span", {class: "number"}), make("span", {class: "share"})];
    const cell = make("div", {class: "class"}, bar, make("span", {class: "check"}), name, count);
    cell.onclick = (event) => this.choose(cell.position, {
      adds: event.ctrlKey || event.metaKey || event.target.className === "check", spans: event.shiftKey});
    return Object.assign(cell, {name, count, bar});
  }

  fill(cell) {
    const {store, q} = state();
    const [label, count] = this.labels[cell.position];
    cell.name.textContent = escaped(className(store, label) || "no label").slice(0, 300);
    cell.count.textContent = counted(count);
    cell.bar.style.width = `${(100 * count) / this.most}%`;
    cell.classList.toggle("none", !count);
    cell.ariaSelected = String(words(q).flatMap(classesIn).includes(classWord(store, label)));
  }

  /** Search only the class at a position. `adds`: add it to the searched classes, or remove it from them. `spans`: add all classes from
   * the last chosen position to this position. */
  choose(position, {adds = false, spans = false} = {}) {
    const {store, q} = state();
    const searched = words(q).flatMap(classesIn);
    const [from, to] = spans ? [this.anchor, position].sort((a, b) => a - b) : [position, position];
    const chosen = this.labels.slice(from, to + 1).map(([label]) => classWord(store, label));
    const isRemoved = !spans && searched.includes(chosen[0]) && (adds || searched.length === 1);
    const all = isRemoved ? searched.filter((word) => word !== chosen[0]) : [...new Set([...adds || spans ? searched : [], ...chosen])];
    this.anchor = position;
    filter((word) => classesIn(word).length, all.length > 1 ? [`(${all.join(" or ")})`] : all);
  }

  pressed(event) {
    const {scroller} = this;
    const step = {ArrowUp: -1, ArrowDown: 1, PageUp: -scroller.page, PageDown: scroller.page, Home: -1e9, End: 1e9}[event.key];
    if (step) scroller.move(scroller.here() + step);
    else if (event.key === "Enter" || event.key === " ") this.choose(scroller.here(), {adds: event.key === " ", spans: event.shiftKey});
    else return;
    event.preventDefault();
  }
}
customElements.define("db-sidebar", Sidebar);
