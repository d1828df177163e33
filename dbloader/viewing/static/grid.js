// @ts-check
import {make} from "./app.js";

class Grid extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "grid"));
  }
}
customElements.define("db-grid", Grid);
