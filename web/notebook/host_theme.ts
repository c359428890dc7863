/** Whether the notebook around is light or dark; "" where it does not say. */
export function hostScheme(): "light" | "dark" | "" {
  const { body, documentElement } = document;
  const jupyter = body.dataset.jpThemeLight;
  if (jupyter !== undefined) return jupyter === "true" ? "light" : "dark";
  const kind = body.dataset.vscodeThemeKind;
  if (kind !== undefined) return kind.endsWith("light") ? "light" : "dark";
  for (const scheme of ["light", "dark"] as const) {
    if ([body, documentElement].some(({ classList }) => classList.contains(scheme))) return scheme;
  }
  return "";
}

/** Give an element the colours of the notebook, now and whenever they change; gives back its end. */
export function followScheme(element: HTMLElement): () => void {
  const apply = (): void => {
    element.style.colorScheme = hostScheme() || "light dark";
  };
  const observer = new MutationObserver(apply);
  const attributes = ["class", "data-jp-theme-light", "data-vscode-theme-kind"];
  for (const node of [document.body, document.documentElement]) {
    observer.observe(node, { attributes: true, attributeFilter: attributes });
  }
  apply();
  return () => observer.disconnect();
}
