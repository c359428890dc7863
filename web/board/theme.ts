import { button } from "../grid/dom.ts";

const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

const SIGNS: Readonly<Record<Theme, string>> = { auto: "◐", light: "☀", dark: "☾" };

function kept(): Theme {
  const value = localStorage.getItem("barrage-theme");
  return THEMES.find((theme) => theme === value) ?? "auto";
}

/** Goes through the themes: as the system has it, light, dark. */
export function themeButton(): HTMLButtonElement {
  let theme = kept();
  const show = (): void => {
    document.documentElement.dataset.theme = theme;
    made.textContent = SIGNS[theme];
    made.setAttribute("aria-label", `Theme: ${theme}`);
    made.title = `Theme: ${theme}`;
  };
  const made = button("", "", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
    localStorage.setItem("barrage-theme", theme);
    show();
  });
  made.className = "iconbutton";
  show();
  return made;
}
