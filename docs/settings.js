// A box above the tables of settings: rows without the words that are typed into it are hidden.
document$.subscribe(() => {
  if (!location.pathname.includes("/settings")) return;
  const box = Object.assign(document.createElement("input"), { type: "search", placeholder: "Find a setting", className: "find" });
  box.setAttribute("aria-label", box.placeholder);
  document.querySelector("h1").after(box);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of document.querySelectorAll("article tbody tr"))
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    for (const table of document.querySelectorAll("article table")) {
      const whole = table.closest(".md-typeset__scrollwrap") ?? table;
      const shown = table.querySelector("tbody tr:not([hidden])") ? "" : "none";
      whole.style.display = whole.previousElementSibling.style.display = shown; // with its heading
    }
  });
});
