//! Draws the screen: a line about the bus, the table, what the selected refusal means, and the keys.
//! Never draws more rows than fit.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::app::{App, Typing};
use super::sheet::{Row, Sheet, View};
use crate::term::safe_text;

const KEYS: &str = "1-4 Tab view  s sort  r reverse  / filter  a agent  Esc all  Enter methods  q quit";

impl App {
    /// Draws all of it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas::<5>(frame.area());
        let [head, tabs, table, why, keys] = areas;
        let sheet = self.sheet();
        self.page = usize::from(table.height.saturating_sub(1));
        self.selected = self.selected.min(sheet.rows.len().saturating_sub(1));
        frame.render_widget(self.head(), head);
        frame.render_widget(self.tabs(), tabs);
        self.table(&sheet, frame, table);
        let row = sheet.rows.get(self.selected);
        frame.render_widget(Paragraph::new(explained(row)).style(Style::new().fg(Color::Yellow)), why);
        frame.render_widget(self.keys(), keys);
    }

    fn head(&self) -> Line<'static> {
        let Some(latest) = self.tally.latest() else { return Line::from("asking…") };
        let replicas = latest.replicas.len();
        let proved = latest.replicas.iter().filter(|replica| replica.key.is_proved()).count();
        let refused: u64 = latest.faults.iter().map(|(_, count)| count).sum();
        let mut spans = vec![Span::raw(format!("replicas: {replicas}, proved: {proved}, round {}", latest.rounds))];
        if refused > 0 {
            let reasons = latest.faults.iter().filter(|(_, count)| *count > 0);
            let reasons: Vec<_> = reasons.map(|(fault, count)| format!("{count} {}", fault.label())).collect();
            let text = format!("  answers refused: {}", reasons.join(", "));
            spans.push(Span::styled(text, Style::new().fg(Color::Red)));
        }
        if !latest.is_connected {
            spans.push(Span::styled("  NO CONNECTION", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)));
        }
        Line::from(spans)
    }

    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (number, view) in (1..).zip(View::ALL) {
            let style = if view == self.view { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.push(Span::styled(format!(" {number} {} ", view.title()), style));
        }
        for (name, filter) in [("service", &self.service), ("agent", &self.agent)] {
            if !filter.is_empty() {
                spans.push(Span::styled(format!("  {name}: {}", safe_text(filter)), Style::new().fg(Color::Cyan)));
            }
        }
        Line::from(spans)
    }

    fn table(&self, sheet: &Sheet, frame: &mut Frame<'_>, area: Rect) {
        if sheet.rows.is_empty() {
            let text = match sheet.view {
                View::Refusals => "nothing was refused, as far as services of ours tell",
                _ => "no service has answered",
            };
            return frame.render_widget(Paragraph::new(text), area);
        }
        let first = self.selected.saturating_sub(self.page.saturating_sub(1));
        let shown: Vec<&Row> = sheet.rows.iter().skip(first).take(self.page).collect();
        let widths = widths(sheet, &shown, usize::from(area.width));
        let line = |texts: Vec<String>, style: Style| {
            let cells = texts.into_iter().zip(&widths).enumerate();
            let is_number = |column: usize| {
                shown.first().and_then(|row| row.cells.get(column)).is_some_and(super::sheet::Cell::is_number)
            };
            let cells = cells.map(|(column, (text, width))| padded(&text, *width, is_number(column)));
            Line::styled(cells.collect::<Vec<_>>().join(" "), style)
        };
        let titles = sheet.columns.iter().enumerate().map(|(column, title)| match column == self.sorted_by() {
            true => format!("{title}{}", if self.is_reversed { '▲' } else { '▼' }),
            false => (*title).to_owned(),
        });
        let mut lines = vec![line(titles.collect(), Style::new().add_modifier(Modifier::BOLD))];
        for (at, row) in (first..).zip(&shown) {
            let style = if row.is_proved { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
            let style = if at == self.selected { style.add_modifier(Modifier::REVERSED) } else { style };
            lines.push(line(row.cells.iter().map(super::sheet::Cell::shown).collect(), style));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn keys(&self) -> Line<'static> {
        match self.typing {
            Some(Typing::Service) => Line::from(format!("service or method: {}_", safe_text(&self.service))),
            Some(Typing::Agent) => Line::from(format!("agent: {}_", safe_text(&self.agent))),
            None => Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM)),
        }
    }
}

/// What the selected row says beside its columns.
fn explained(row: Option<&Row>) -> String {
    row.and_then(|row| Some(format!("{}: {}", safe_text(&row.what), row.why?))).unwrap_or_default()
}

/// How wide each column is. If they do not fit, the widest ones of text become narrower.
fn widths(sheet: &Sheet, rows: &[&Row], room: usize) -> Vec<usize> {
    let widest = |column: usize, title: &str| {
        let texts = rows.iter().filter_map(|row| row.cells.get(column)).map(|cell| Line::from(cell.shown()).width());
        // With the mark of the column that it is sorted by.
        texts.max().unwrap_or(0).max(title.len() + 1)
    };
    let mut widths: Vec<usize> = sheet.columns.iter().enumerate().map(|(at, title)| widest(at, title)).collect();
    let gaps = widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROW) else { break };
        *widest -= 1;
    }
    widths
}

/// A column is never narrower than this.
const NARROW: usize = 6;

/// A text in exactly this width; what is cut ends with `…`.
fn padded(text: &str, width: usize, is_number: bool) -> String {
    let full = Line::from(text).width();
    let mut cut = String::new();
    if full > width {
        for c in text.chars() {
            if Line::from(cut.as_str()).width() + Line::from(c.to_string()).width() >= width {
                break;
            }
            cut.push(c);
        }
        cut.push('…');
    } else {
        cut.push_str(text);
    }
    let room = " ".repeat(width.saturating_sub(Line::from(cut.as_str()).width()));
    if is_number { room + &cut } else { cut + &room }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use tokio::time::Instant;

    use super::super::tally::tests::{found, replica};
    use super::*;

    fn app() -> App {
        let (mut app, now) = (App::default(), Instant::now());
        for (calls, now) in [(100, now), (300, now + Duration::from_secs(2))] {
            app.take(found(vec![
                replica("dev", "math", "A", calls, now),
                replica("dev", "bank", "B", 2 * calls, now),
                replica("", "orders", "C", 5, now),
            ]));
        }
        app
    }

    fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| app.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn press(app: &mut App, keys: &str) -> bool {
        let mut is_over = false;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\t' => KeyCode::Tab,
                '↓' => KeyCode::Down,
                c => KeyCode::Char(c),
            };
            is_over = app.press(KeyEvent::from(code)).is_break();
        }
        is_over
    }

    #[test]
    fn services_come_first_and_the_busiest_at_the_top() {
        let screen = screen(&mut app(), 100, 9);
        let expected = [
            "replicas: 3, proved: 2, round 1",
            " 1 Services  2 Replicas  3 Methods  4 Refusals",
            "SERVICE  PROVED  REPLICAS  CALLS/s▼ ERRORS/s    MEAN  CALLS  ERRORS  REFUSED/s  REFUSED ",
        ];
        assert_eq!(screen[..2], expected[..2]);
        assert_eq!(
            screen[2].split_whitespace().collect::<Vec<_>>(),
            expected[2].split_whitespace().collect::<Vec<_>>()
        );
        let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        assert_eq!([3, 4, 5].map(|at| first(&screen[at])), ["dev/bank", "dev/math", "orders"]);
        assert!(screen[3].contains("2.0 ms") && screen[3].contains("200"), "{screen:#?}");
        assert!(screen[8].starts_with("1-4 Tab view  s sort"), "{screen:#?}");
    }

    #[test]
    fn keys_choose_views_filter_by_service_and_agent_and_sort() {
        let mut app = app();
        assert!(!press(&mut app, "3"));
        let all = screen(&mut app, 100, 9);
        assert!(all[3].contains("bad\\u{1b}[2J\\u{202e}"), "{all:#?}");
        press(&mut app, "/math\n");
        let filtered = screen(&mut app, 100, 9);
        assert!(filtered[1].ends_with("service: math") && filtered[3].starts_with("dev/math"), "{filtered:#?}");
        assert_eq!(filtered[4], "");
        press(&mut app, "\u{1b}aplan\n");
        let of_agent = screen(&mut app, 100, 9);
        assert!(of_agent[1].ends_with("agent: plan"), "{of_agent:#?}");
        assert!(of_agent[3].contains("planner") && of_agent[4].contains("planner") && of_agent[5].is_empty());
        assert!(of_agent[7].starts_with("replayed: "), "{of_agent:#?}");
        press(&mut app, "\u{1b}1sr↓\n");
        // Sorted by errors from below: the second one was chosen.
        assert_eq!((app.service.as_str(), app.view), ("dev/math", View::Methods));
        press(&mut app, "\u{1b}\t");
        assert_eq!(app.view, View::Refusals);
        assert!(press(&mut app, "q"));
    }

    #[test]
    fn whatever_the_size_nothing_is_drawn_outside() {
        for (width, height) in [(1, 1), (10, 3), (40, 6), (300, 80)] {
            for view in "1234".chars() {
                let mut app = app();
                press(&mut app, &view.to_string());
                assert_eq!(screen(&mut app, width, height).len(), usize::from(height));
            }
        }
        let mut app = app();
        app.take(found((0..1_000).map(|at| replica("", &format!("s{at}"), "1", at, Instant::now())).collect()));
        press(&mut app, &"↓".repeat(500));
        let screen = screen(&mut app, 80, 24);
        assert_eq!((app.selected, app.page, screen.len()), (500, 19, 24));
    }

    #[test]
    fn wide_characters_take_their_width() {
        assert_eq!(padded("世界世界", 5, false), "世界…");
        assert_eq!(padded("abc", 5, true), "  abc");
        assert_eq!(padded("abcdef", 4, false), "abc…");
    }
}
