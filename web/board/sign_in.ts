import { element } from "../grid/dom.ts";

/** Asks for a token, or a name and a password, until the server lets the page in. */
export class SignIn {
  readonly element = element("dialog", { class: "signin", "aria-labelledby": "signin-title" });
  private readonly user = element("input", { type: "text", autocomplete: "username", id: "signin-user" });
  private readonly secret = element("input", { type: "password", autocomplete: "current-password", id: "signin-secret", required: "" });
  private readonly problem = element("p", { class: "problem", role: "alert" });

  constructor(private readonly done: () => void) {
    const form = element("form", {}, [
      element("h2", { id: "signin-title" }, ["Sign in"]),
      element("label", { for: "signin-user" }, ["User, or nothing for a token"]),
      this.user,
      element("label", { for: "signin-secret" }, ["Password or token"]),
      this.secret,
      this.problem,
      element("button", { type: "submit", class: "main" }, ["Sign in"]),
    ]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.submit();
    });
    this.element.append(form);
  }

  ask(reason: string): void {
    this.problem.textContent = reason;
    if (!this.element.open) this.element.showModal();
  }

  private async submit(): Promise<void> {
    const user = this.user.value.trim();
    const pair = new TextEncoder().encode(`${user}:${this.secret.value}`);
    const basic = btoa(Array.from(pair, (byte) => String.fromCharCode(byte)).join(""));
    const authorization = user === "" ? `Bearer ${this.secret.value}` : `Basic ${basic}`;
    try {
      const answer = await fetch("/session", { method: "POST", headers: { authorization } });
      if (!answer.ok) {
        this.problem.textContent = await answer.text();
        return;
      }
    } catch (error) {
      this.problem.textContent = (error as Error).message;
      return;
    }
    this.secret.value = "";
    this.element.close();
    this.done();
  }
}
