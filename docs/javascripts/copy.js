// Copy buttons give the commands of a session, without prompts and output.
//
// A line after "$ " begins a command. The command goes on while a line ends with a
// backslash, or until the end of its here-document. In a session of Python, the lines
// after ">>> " and "... " are the commands. `tests/support/sessions.py` reads sessions
// by the same rules.

function commandsOfShell(lines) {
  const kept = [];
  let end = null;
  let continued = false;
  for (const line of lines) {
    if (end !== null) {
      kept.push(line);
      if (line === end) end = null;
    } else if (continued || line.startsWith("$ ")) {
      kept.push(continued ? line : line.slice(2));
      continued = line.endsWith("\\");
      const document = /<<'(\w+)'/.exec(line);
      if (document) end = document[1];
    }
  }
  return kept;
}

function commandsOfPython(lines) {
  return lines
    .filter((line) => /^(>>>|\.\.\.)( |$)/.test(line))
    .map((line) => line.slice(4));
}

const SESSIONS = {
  "language-console": commandsOfShell,
  "language-pycon": commandsOfPython,
};

function setCopiedText() {
  for (const [language, commands] of Object.entries(SESSIONS)) {
    for (const block of document.querySelectorAll(`.${language}`)) {
      const code = block.querySelector("pre > code");
      const button = block.querySelector("[data-clipboard-target]");
      if (code && button) {
        const lines = code.textContent.replace(/\n$/, "").split("\n");
        button.dataset.clipboardText = commands(lines).join("\n");
      }
    }
  }
}

// The theme adds its buttons after the page has been loaded.
new MutationObserver(setCopiedText).observe(document.documentElement, {
  childList: true,
  subtree: true,
});
setCopiedText();
