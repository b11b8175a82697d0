// The pages work without this script. It shows only databases and tasks that fit the program,
// and submits the form with Ctrl and Enter.
const form = document.getElementById("search");

function offer() {
  const program = form.elements.program.value;
  const kind = program === "blastp" || program === "blastx" ? "prot" : "nucl";
  for (const set of form.querySelectorAll("fieldset[data-type]")) {
    set.hidden = set.disabled = set.dataset.type !== kind;
  }
  for (const option of form.querySelectorAll("option[data-program]")) {
    option.hidden = option.disabled = option.dataset.program !== program;
    if (option.disabled && option.selected) form.elements.task.value = "";
  }
}

if (form) {
  offer();
  form.elements.program.addEventListener("change", offer);
  form.elements.query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
}
