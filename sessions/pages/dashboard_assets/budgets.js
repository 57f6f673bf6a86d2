// Budgets as people read them: what they leave, of how much, and whose they are. Several hold for a
// session at once: its own, its tree's, those of the trees that it is a part of, its tenant's.

import { el, width } from "./dom.js";
import { KINDS, amount } from "./format.js";

// All that hold for a session's row; `tenants` has those of tenants by name.
export const held = (row, tenants) => [...row.budgets, tenants?.[row.tenant]].filter(Boolean);

export function whose({ scope, owner }, session) {
  if (scope === "tenant") return `tenant ${owner}`;
  const name = owner === session ? "this session" : owner;
  return scope === "tree" ? `${name} and its sub-agents` : name;
}

export const share = (left, limit) => (limit ? left / limit : 0);

const SCARCE = 0.1;

export const shade = (rest) => (rest < SCARCE ? "bad" : rest < 0.3 ? "low" : "good");

// Of each kind the budget that leaves least of it.
export function tightest(budgets) {
  const found = new Map();
  for (const budget of budgets) {
    for (const [kind, limit] of Object.entries(budget.limit)) {
      const left = budget.left[kind];
      if (!found.has(kind) || left < found.get(kind).left) found.set(kind, { kind, left, limit, budget });
    }
  }
  return [...found.values()].sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
}

// What a table's cell says: of each kind that a session or its trees bound the least that is left, in
// a line for each scope, and a bar of the one that will end first. A tenant's budget bounds all rows
// alike: it is told where it leaves less, is nearly used up, or stands alone.
export function budgetCell(budgets, session) {
  const all = tightest(budgets);
  if (!all.length) return ["–"];
  const near = new Set(budgets.filter(({ scope }) => scope !== "tenant").flatMap(({ limit }) => Object.keys(limit)));
  const told = all.filter(({ kind, left, limit }) => near.has(kind) || share(left, limit) < SCARCE);
  const bounds = told.length ? told : [first(all)];
  const rest = first(bounds);
  const bar = el("i", { class: shade(share(rest.left, rest.limit)) });
  width(bar, share(rest.left, rest.limit));
  const lines = ["session", "tree", "tenant"].map((scope) => [scope, bounds.filter(({ budget }) => budget.scope === scope)]);
  const said = lines.filter(([, each]) => each.length).map(([scope, each]) =>
    el("p", {}, ...each.flatMap(({ kind, left }, index) => [index ? " · " : "", el("span", {}, amount(kind, left))]), scope === "session" ? "" : el("small", {}, ` ${scope}`)),
  );
  return [el("div", { class: "budgets", title: explained(budgets, session) }, ...said, el("div", { class: "bar", "aria-hidden": "true" }, bar))];
}

const first = (bounds) => bounds.reduce((least, each) => (share(each.left, each.limit) < share(least.left, least.limit) ? each : least));

// Every budget in a line of its own.
const explained = (budgets, session) =>
  budgets
    .filter(({ limit }) => Object.keys(limit).length)
    .map((budget) => {
      const parts = Object.entries(budget.limit).map(([kind, limit]) => `${amount(kind, budget.left[kind])} of ${amount(kind, limit)}`);
      return `${whose(budget, session)}: ${parts.join(", ")} left`;
    })
    .join("\n");
