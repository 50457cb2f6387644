// Typesets what pymdownx.arithmatex has marked; KaTeX is in this folder, so nothing is fetched from elsewhere.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const inline = element.textContent.startsWith("\\(");
  const source = element.textContent.replace(/^\\[([]/, "").replace(/\\[)\]]$/, "");
  katex.render(source, element, { displayMode: !inline, throwOnError: false });
});
