//! What is looked at, and what keys do about it.
//! Never asks anybody anything.

use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sealwire_survey::Snapshot;

use super::sheet::{Sheet, View};
use super::tally::Tally;

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) tally: Tally,
    pub(super) view: View,
    /// The column to sort by, for each view; `None` for its first.
    sort: [Option<usize>; View::ALL.len()],
    pub(super) is_reversed: bool,
    /// What services and methods, and what agents, must contain.
    pub(super) service: String,
    pub(super) agent: String,
    /// What is being typed.
    pub(super) typing: Option<Typing>,
    pub(super) selected: usize,
    /// How many rows a page has, as last drawn.
    pub(super) page: usize,
}

/// Which filter is being typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typing {
    Service,
    Agent,
}

/// The longest filter.
const MAX_FILTER: usize = 128;

impl App {
    /// Takes what a round has found.
    pub(super) fn take(&mut self, snapshot: Snapshot) {
        self.tally.add(snapshot);
    }

    /// The table to be drawn, filtered and sorted.
    pub(super) fn sheet(&self) -> Sheet {
        let mut sheet = Sheet::new(self.view, &self.tally);
        let (service, agent) = (self.service.to_lowercase(), self.agent.to_lowercase());
        let has = |text: &str, part: &str| part.is_empty() || text.to_lowercase().contains(part);
        let of_agents = self.view == View::Refusals;
        sheet.rows.retain(|row| {
            let is_service = has(&row.service, &service) || has(&row.what, &service);
            is_service && (!of_agents || has(&row.agent, &agent))
        });
        sheet.sort(self.sorted_by(), self.is_reversed);
        sheet
    }

    /// The column that it is sorted by.
    pub(super) fn sorted_by(&self) -> usize {
        let chosen = self.sort.get(self.view as usize).copied().flatten();
        chosen.unwrap_or_else(|| self.view.first_sort())
    }

    fn sort_by(&mut self, column: usize) {
        if let Some(sort) = self.sort.get_mut(self.view as usize) {
            *sort = Some(column);
        }
    }

    fn look_at(&mut self, view: View) {
        (self.view, self.selected) = (view, 0);
    }

    /// Obeys a key; breaks if it ends the command.
    pub(super) fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c')) {
            return ControlFlow::Break(());
        }
        if let Some(typing) = self.typing {
            self.typed(typing, key.code);
            return ControlFlow::Continue(());
        }
        let rows = || self.sheet().rows.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Char(digit @ '1'..='4') => {
                let at = usize::try_from(u32::from(digit) - u32::from('1')).unwrap_or(0);
                self.look_at(View::ALL.get(at).copied().unwrap_or_default());
            }
            KeyCode::Tab => self.look_at(self.next_view(1)),
            KeyCode::BackTab => self.look_at(self.next_view(View::ALL.len() - 1)),
            KeyCode::Char('s') => {
                let columns = self.sheet().columns.len();
                self.sort_by((self.sorted_by() + 1) % columns);
            }
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.typing = Some(Typing::Service),
            KeyCode::Char('a') => {
                self.look_at(View::Refusals);
                self.typing = Some(Typing::Agent);
            }
            KeyCode::Esc => {
                self.service.clear();
                self.agent.clear();
            }
            KeyCode::Enter => {
                if let Some(row) = self.sheet().rows.into_iter().nth(self.selected) {
                    self.service = row.service;
                    self.look_at(if self.view == View::Refusals { View::Refusals } else { View::Methods });
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(rows()),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected = (self.selected + self.page.max(1)).min(rows()),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(self.page.max(1)),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = rows(),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn next_view(&self, step: usize) -> View {
        View::ALL.get((self.view as usize + step) % View::ALL.len()).copied().unwrap_or_default()
    }

    /// A key while a filter is being typed.
    fn typed(&mut self, typing: Typing, key: KeyCode) {
        let text = match typing {
            Typing::Service => &mut self.service,
            Typing::Agent => &mut self.agent,
        };
        match key {
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => {
                text.clear();
                self.typing = None;
            }
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) if text.len() < MAX_FILTER => text.push(c),
            _ => {}
        }
        self.selected = 0;
    }
}
