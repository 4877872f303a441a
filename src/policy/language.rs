//! From the bytes of a folder to checked rules: `resolve::check` is the only way in.
//!
//! 1. `folder` reads every file, bounded.
//! 2. `toml_file` reads roles, agents, methods, claims and attributes, through `table`, which knows lines and overlooks
//!    no key.
//!    Neither hides anything from a reader (`unreadable`), and patterns mean what they look like (`globs`).
//! 3. `resolve` puts the files together, and checks across them: the result is `checked`.
//! 4. `approval_table` reads `[approval.NAME]`, and checks the rules that approvals lift; `budget_table` reads `[budget.NAME]`. `rule_table` reads `[rule.NAME]` once the methods are known; its `when` and `unless` go through `when` and
//!    `condition`. `cedar_file` reads Cedar. Both refuse what no call can satisfy: `constraint` (conditions that leave
//!    nothing), `comparable` (values that cannot be compared), `literals` (names that cannot exist).
//! 5. `lint` compares the rules with each other, and lets Cedar check their types; `doubts` is about what is rarely meant.
//!
//! Never decides a call, and never accepts only a part of a folder.

mod approval_table;
mod budget_table;
pub(crate) mod cedar_file;
mod checked;
mod comparable;
mod condition;
mod constraint;
mod doubts;
mod folder;
mod globs;
mod lint;
mod literals;
pub(crate) mod resolve;
mod rule_table;
mod table;
mod toml_file;
pub(crate) mod unreadable;
pub(crate) mod when;

pub(crate) use approval_table::deciders;
pub(crate) use checked::CheckedPolicy;
pub(crate) use constraint::{Constraint, contradiction, understood};
pub(crate) use folder::Folder;
pub(crate) use literals::{ALGORITHMS, impossible, impossible_name};
pub(crate) use table::{Raw, Source, Table, listed};
