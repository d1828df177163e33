// @ts-check
import {make} from "./app.js";

class Record extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "record"));
  }
}
customElements.define("db-record", Record);
