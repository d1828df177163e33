/** Review: one record after the other, each decided by one key. */
import {amount, api, className, counted, escaped, go, labelName, load, make, notice, over as overOf, picture, refresh, say, state, stores,
  title} from "./app.js";
import {exact} from "./bars.js";
import {empty} from "./icons.js";
import {keys} from "./keys.js";
import {badge, locked, mark} from "./marks.js";
import {mistaken} from "./query.js";

const CHUNK = 200; // rows in one request
const RECENT = 9; // classes with a key of their own
const SETTLE_MS = 250; // from the last step to a change of the URL
const PX = 1600; // most pixels a side of the picture

class Review extends HTMLElement {
  connectedCallback() {
    this.key = ""; // the store, query and order that are reviewed; the records stay the same, also if marks change what the query finds
    this.at = this.count = 0;
    this.recent = []; // [class, time of its last use]
    this.queue = Promise.resolve(); // changes in the order of the keys
    const action = (text, hint, run, properties = {}) =>
      make("button", {onclick: () => { run(); this.heading.focus(); }, ...properties}, text, make("kbd", {ariaHidden: "true"}, hint));
    this.heading = make("h1", {tabIndex: -1});
    this.where = make("span", {class: "muted"});
    this.meter = make("progress", {ariaLabel: "Reviewed records", max: 1, value: 0});
    this.image = make("img", {alt: ""});
    this.why = make("p", {class: "damage", role: "alert", hidden: true});
    this.verdict = make("p", {class: "verdict"});
    this.accept = action("Accept prediction", "Enter", () => this.agree(), {class: "first"});
    this.label = make("input", {placeholder: "class (l)", ariaLabel: "Class of this record", autocomplete: "off", onkeydown: (event) => {
      if (event.key !== "Enter" || !this.label.value.trim()) return;
      this.rename(this.label.value.trim());
      this.label.value = "";
      this.heading.focus();
    }});
    this.label.setAttribute("list", "class-names");
    this.classes = make("div", {class: "chips", role: "group", ariaLabel: "Recent classes"});
    this.stage = make("div", {class: "stage"}, this.image, this.why);
    this.actions = make("div", {class: "actions"}, action("Back", "←", () => this.move(-1), {ariaLabel: "Back"}), this.accept,
      action("Drop", "d", () => this.drop(), {ariaLabel: "Drop"}), action("Keep", "→", () => this.move(1), {ariaLabel: "Keep"}),
      this.label);
    this.body = make("div", {class: "body"}, this.stage, this.verdict, this.actions, this.classes);
    this.end = make("div", {hidden: true});
    this.append(make("header", {}, this.heading, this.where, this.meter), this.body, this.end);
    keys({
      Enter: ["Accept the prediction, and go on", () => this.agree()],
      d: ["Mark to drop, or keep, and go on", () => this.drop()],
      ArrowRight: ["Keep, and go on", () => this.move(1)],
      ArrowLeft: ["Back", () => this.move(-1)],
      l: ["Type a class, which may be new", () => this.label.focus()],
    }, "review");
    for (let n = 0; n < RECENT; n++)
      keys({[n + 1]: [n ? "" : "Set the recent class of this number, and go on",
        () => this.recent[n] && this.rename(this.recent[n][0])]}, "review");
  }

  async show(now) {
    title("review");
    const key = `${now.store} ${now.sort} ${now.q}`, {undone} = this;
    if (key === this.key) {
      const redo = stores[now.store].marks.redo?.id, back = this.changed.get(redo);
      if (back !== undefined && redo !== undone) this.at = back; // an undone change shows its record again
      else if (!this.timer) this.at = now.at;
      this.undone = redo;
      return this.paint();
    }
    this.at = now.at;
    this.undone = null;
    this.changed = new Map(); // by the id of a change: the position of its record
    this.chunks = new Map();
    const {classes} = stores[now.store];
    this.recent = classes.length <= RECENT ? classes.map((name) => [name, 0]) : [];
    await refresh(this, key, async (signal) => {
      this.count = (await api(`/api/${now.store}/select`, {q: now.q}, signal)).count;
      if (signal.aborted) return;
      this.heading.focus({preventScroll: true});
      await this.paint();
    }, () => {
      [this.body.hidden, this.meter.hidden, this.end.hidden] = [true, true, false];
      [this.heading.textContent, this.where.textContent] = ["Review", ""];
      this.end.replaceChildren(mistaken());
    });
  }

  /** Return the row at a position. The rows of its chunk are requested first if they are missing. */
  async row(at) {
    const {store, q, sort} = state(), number = Math.floor(at / CHUNK), {revision} = stores[store].marks;
    if (!this.chunks.has(number))
      this.chunks.set(number, api(`/api/${store}/rows`, {q, sort, start: number * CHUNK, count: CHUNK}, this.stop.signal)
        .then(({rows}) => ({rows, revision})));
    const chunk = await this.chunks.get(number).catch((error) => { this.chunks.delete(number); throw error; });
    const row = chunk.rows[at % CHUNK];
    if (!row || chunk.revision === revision) return row;
    // with its new marks
    return (await api(`/api/${store}/rows`, {q: `index:${row[0]}`, sort, start: 0, count: 1}, this.stop.signal)).rows[0];
  }

  /** Show the record at the present position. */
  async paint() {
    const {at, count} = this, {store, q} = state(), over = overOf(store), {classes, columns, marks} = stores[store], isEnd = at >= count;
    this.current = null;
    [this.body.hidden, this.meter.hidden, this.end.hidden] = [isEnd, isEnd, !isEnd];
    this.where.textContent = isEnd ? "" : `${counted(at + 1)} of ${counted(count)}`;
    this.meter.value = count ? at / count : 0;
    if (isEnd) {
      this.heading.textContent = "Review";
      return this.end.replaceChildren(empty("review", count ? `All ${amount(count, "record")} reviewed` : "No record matches",
        !count ? q : marks.count ? `${amount(marks.count, "change")}. The button at the top right shows them.` : "",
        make("button", {class: "first", onclick: () => go(count || !q ? {view: null, at: null} : {q: null, at: null})},
          count || !q ? "Back to the images" : "Remove all conditions")));
    }
    const row = await this.row(at).catch((error) => void (error.name === "AbortError" || notice(error.message)));
    if (!row || at !== this.at || store !== state().store) return;
    const [index, name, label, , , , fields] = row;
    this.current = {at, index, label, fields};
    this.heading.textContent = escaped(name ?? `record ${counted(index)}`);
    say(`${this.heading.textContent}, ${this.where.textContent}`);
    const src = (number) => picture("thumb", store, number, {px: PX, over});
    this.why.hidden = true;
    this.image.alt = `The image of record ${index}`;
    load(this.image, src(index), (why) => { this.why.hidden = false; this.why.textContent = escaped(why); });
    // the browser loads it in advance
    this.row(at + 1).then((next) => next && (this.next = Object.assign(new Image(), {src: src(next[0])})), () => {});
    const {prediction} = fields, guess = labelName(store, prediction);
    const own = labelName(store, label) || "no label", differs = guess && ![label, className(store, label)].includes(prediction);
    const by = state().sort.replace(/^-/, "");
    const more = typeof fields[by] === "number" ? make("span", {class: "muted"}, `${escaped(by)} ${exact(fields[by])}`) : "";
    const predicted = differs ? ["→", make("span", {class: "chip differs"}, guess)] : [make("span", {class: "muted"}, "✓ predicted")];
    const marked = make("span", {class: `chip ${fields["mark.drop"] === "true" ? "drop" : "label"}`}, `Marked: ${badge(fields)}`);
    this.verdict.replaceChildren(make("span", {class: "chip"}, own), ...guess ? predicted : [], badge(fields) ? marked : "", more);
    this.accept.hidden = !columns.prediction;
    for (const control of this.actions.querySelectorAll("button, input")) Object.assign(control, locked(store));
    this.classes.replaceChildren(...this.recent.map(([each], n) => make("button", {...locked(store),
      onclick: () => { this.rename(each); this.heading.focus(); }}, make("kbd", {ariaHidden: "true"}, n + 1), ` ${escaped(each)}`)));
    this.label.inputMode = classes.length ? "text" : "numeric";
    this.waiting?.();
  }

  /** Wait for the record that is shown, so that a key is not lost while its row comes. */
  async shown() {
    while (!this.current && this.at < this.count) await new Promise((resolve) => { this.waiting = resolve; });
    return this.current;
  }

  /** Go to the record `by` further. */
  move(by) {
    this.at = Math.max(0, Math.min(this.count, this.at + by));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.timer = null;
      if (state().view === "review") go({at: this.at}, {replace: true});
    }, SETTLE_MS);
    return this.paint();
  }

  /** Decide about the shown record with the change that `what` returns, and go on. Keys take effect in their order. */
  decide(what) {
    this.queue = this.queue.then(async () => {
      const {store} = state(), record = await this.shown();
      if (!record) return;
      const change = what(record);
      if (change === null) return;
      if (change && !await mark(store, `index:${record.index}`, change, 1)) return;
      const {undo} = stores[store].marks;
      if (change && undo) this.changed.set(undo.id, record.at);
      this.undone = stores[store].marks.redo?.id;
      await this.move(1);
    });
    return this.queue;
  }

  agree() {
    return this.decide(({label, fields: {prediction, "mark.label": given}}) => {
      if (prediction == null) {
        notice("This record has no prediction.");
        return null;
      }
      const agrees = [label, className(state().store, label)].includes(prediction);
      return given == null && agrees ? false : {accept: true};
    });
  }

  drop() { return this.decide(({fields}) => (fields["mark.drop"] === "true" ? {remove: "drop"} : {drop: true})); }

  rename(name) {
    const {classes} = stores[state().store];
    const oldest = Math.min(...this.recent.map(([, time]) => time));
    let at = this.recent.findIndex(([each]) => each === name); // each class keeps its key
    if (at < 0) at = this.recent.length < RECENT ? this.recent.length : this.recent.findIndex(([, time]) => time === oldest);
    this.recent[at] = [name, performance.now()];
    return this.decide(() => ({label: classes.length ? name : Number(name)}));
  }
}
customElements.define("db-review", Review);
