// @ts-check
import {make} from "./app.js";

class Report extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "report"));
  }
}
customElements.define("db-report", Report);
