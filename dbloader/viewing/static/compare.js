// @ts-check
import {make} from "./app.js";

class Compare extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "compare"));
  }
}
customElements.define("db-compare", Compare);
