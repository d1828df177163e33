/** The report of the conversion: files that were rejected, repaired or changed. */
import {api, counted, escaped, go, link, make, refresh, title} from "./app.js";
import {empty} from "./icons.js";

const PAGE = 200;

class Report extends HTMLElement {
  connectedCallback() {
    this.text = make("input", {type: "search", ariaLabel: "Search names and reasons", placeholder: "Search names and reasons",
      autocomplete: "off", onchange: () => go({text: this.text.value, start: null})});
    this.events = make("p", {class: "chips"});
    this.status = make("p", {class: "muted", role: "status"});
    this.body = make("tbody");
    const heads = ["Event", "Name", "Reason"].map((text) => make("th", {scope: "col"}, text));
    this.table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), this.body);
    this.pages = make("nav", {class: "steps", ariaLabel: "Pages of the report"});
    this.none = make("div");
    this.append(make("h1", {}, "Report of the conversion"), this.text, this.events, this.status, this.table, this.pages, this.none);
  }

  async show(now) {
    title("report");
    const {event = "", text = ""} = now, start = Math.max(0, Math.floor(Number(now.start ?? 0)) || 0);
    const key = [now.store, event, text, start].join("\n");
    await refresh(this, key, async (signal) => {
      this.text.value = text;
      const {total, counts, rows} = await api(`/api/${now.store}/report`, {event, text, start, count: PAGE}, signal);
      if (!signal.aborted) this.fill(now, {event, start, total, counts, rows});
    }, (why) => (this.status.textContent = why));
  }

  fill(now, {event, start, total, counts, rows}) {
    const choice = (name, text) =>
      make("button", {ariaPressed: String(event === name), onclick: () => go({event: name, start: null})}, escaped(text));
    const all = Object.entries(counts);
    const lines = all.reduce((sum, [, count]) => sum + count, 0);
    this.events.replaceChildren(choice("", `all ${counted(lines)}`),
      ...all.map(([name, count]) => choice(name, `${name} ${counted(count)}`)));
    this.text.hidden = this.events.hidden = !lines;
    this.table.hidden = !rows.length;
    this.none.replaceChildren(...lines ? [] :
      [empty("report", "The report is empty", "The conversion repaired, rejected and changed no file.")]);
    this.status.textContent = !lines ? "" :
      rows.length ? `${counted(start + 1)} to ${counted(start + rows.length)} of ${counted(total)} lines` : "No line matches.";
    this.body.replaceChildren(...rows.map((row) => make("tr", {}, make("td", {class: row.event}, row.event),
      make("td", {}, row.index === null ? escaped(row.name) : link({view: "record", index: row.index, q: null}, escaped(row.name))),
      make("td", {}, escaped(row.reason)))));
    const page = (text, to) => (to < 0 || to >= total ? null : link({start: to || null}, text));
    this.pages.replaceChildren(...[page("← Previous lines", start - PAGE), page("Next lines →", start + PAGE)].filter(Boolean));
  }
}
customElements.define("db-report", Report);
