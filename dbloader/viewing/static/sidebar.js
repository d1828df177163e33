// @ts-check
import {make} from "./app.js";

class Sidebar extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "sidebar"));
  }
}
customElements.define("db-sidebar", Sidebar);
