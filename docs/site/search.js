// `node docs/site/search.js out/site QUERY...`: what the site's search shows for each query.
//
// Runs Sphinx's own scripts, from the built site, without a browser. Prints one line for each query:
// the pages in their order, as JSON.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const ignore = () => {};
const context = {
  console,
  document: {
    readyState: "loading",
    addEventListener: ignore,
    getElementById: () => ({}),
    documentElement: { dataset: {} },
  },
  addEventListener: ignore,
  SPHINX_HIGHLIGHT_ENABLED: false,
};
context.window = context;
vm.createContext(context);
for (const file of ["doctools.js", "language_data.js", "searchtools.js"]) {
  vm.runInContext(fs.readFileSync(path.join(site, "_static", file), "utf8"), context);
}
vm.runInContext(fs.readFileSync(path.join(site, "searchindex.js"), "utf8"), context);
for (const query of queries) {
  context.query = query;
  const found = vm.runInContext("Search._performSearch(...Search._parseQuery(query))", context);
  // the best one is the last: Sphinx takes them from the end
  console.log(JSON.stringify(found.reverse().map(([page]) => page)));
}
