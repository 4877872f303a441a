//! A single layout for policy files, so that reviews are about rules.
//! Never changes what a file says: the result must parse to the same values, or the text stays as it is.

use crate::policy::language::{cedar_file, unreadable};
use crate::policy::stack;
use cedar_policy::ffi::{FormattingAnswer, FormattingCall};
use toml_parser::Source;
use toml_parser::lexer::{Token, TokenKind};

/// A policy file that cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It does not parse, so nothing is known about its layout.
    #[error("cannot be laid out: {0}")]
    Syntax(String),
    /// The result would have said something else: a defect of ours; the file is fine.
    #[error("cannot be laid out without changing what it says")]
    Changed,
}

/// Lays out a policy file by the ending of its name: `.cedar` as Cedar, everything else as TOML.
///
/// # Errors
/// [`FormatError::Syntax`] when the text does not parse.
pub fn format(name: &str, text: &str) -> Result<String, FormatError> {
    // What a reader cannot see must not end up elsewhere.
    if let Some((at, what)) = unreadable::characters(text).next() {
        return Err(syntax(text, Some(at), &what));
    }
    let work = || if name.ends_with(".cedar") { format_cedar(text) } else { format_toml(text) };
    stack::with_room(work).map_err(|error| FormatError::Syntax(error.to_string()))?
}

fn format_cedar(text: &str) -> Result<String, FormatError> {
    if text.trim().is_empty() {
        return Ok(String::new());
    }
    // Like the loader, it leaves out the byte order mark that some editors write.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some((at, why)) = cedar_file::excessive(text) {
        return Err(syntax(text, Some(at), &why));
    }
    let call = serde_json::json!({ "policyText": text, "lineWidth": LINE, "indentWidth": INDENT });
    let call: FormattingCall = serde_json::from_value(call).map_err(|error| FormatError::Syntax(error.to_string()))?;
    match cedar_policy::ffi::format(call) {
        FormattingAnswer::Success { formatted_policy } => Ok(formatted_policy),
        FormattingAnswer::Failure { errors } => {
            let first = errors.first();
            let start = first.and_then(|error| error.source_locations.first()).map(|label| label.loc.start);
            Err(syntax(text, start, first.map(|error| error.message.as_str()).unwrap_or_default()))
        }
    }
}

/// What does not parse, and its line if that is known.
fn syntax(text: &str, start: Option<usize>, message: &str) -> FormatError {
    let line = start.and_then(|start| text.get(..start)).map(|before| before.matches('\n').count() + 1);
    FormatError::Syntax(line.map(|line| format!("line {line}: ")).unwrap_or_default() + message)
}

fn format_toml(text: &str) -> Result<String, FormatError> {
    let before: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| syntax(text, error.span().map(|span| span.start), error.message()))?;
    let source = Source::new(text);
    let tokens: Vec<Token> = source.lex().into_vec();
    let mut layout = Layout::default();
    for token in tokens {
        let span = token.span();
        layout.token(token.kind(), text.get(span.start()..span.end()).unwrap_or_default());
    }
    let after = layout.finish();
    match after.parse::<toml::Table>() {
        Ok(parsed) if parsed == before => Ok(after),
        _ => Err(FormatError::Changed),
    }
}

/// The text so far, and where in a line we are.
#[derive(Debug, Default)]
struct Layout {
    text: String,
    /// The line being built, without its indentation.
    line: String,
    /// Open brackets that began a value.
    open: usize,
    /// Open brackets at the beginning of the line.
    depth: usize,
    /// Within `[…]` of a table's heading.
    heading: bool,
    /// After the `=` of the line at depth 0.
    value: bool,
    /// The last token other than blanks was a bare word or number.
    after_atom: bool,
    /// Blank lines in the text at this point.
    blank: usize,
    /// Comment lines that wait for what they are about.
    comments: String,
}

impl Layout {
    fn token(&mut self, kind: TokenKind, text: &str) {
        match kind {
            TokenKind::Whitespace | TokenKind::Eof => {}
            TokenKind::Newline => self.newline(),
            TokenKind::Comment => {
                if !self.line.is_empty() {
                    self.space();
                }
                self.line.push_str(text.trim_end());
            }
            TokenKind::Equals => {
                self.space();
                self.line.push_str("= ");
                self.value = true;
            }
            TokenKind::Comma => {
                self.line.truncate(self.line.trim_end().len());
                self.line.push_str(", ");
            }
            TokenKind::Dot => self.line.push('.'),
            TokenKind::LeftSquareBracket if !self.value && self.open == 0 => {
                self.heading = true;
                self.line.push('[');
            }
            TokenKind::RightSquareBracket if self.heading => self.line.push(']'),
            TokenKind::LeftSquareBracket => self.opening("["),
            TokenKind::LeftCurlyBracket => self.opening("{ "),
            TokenKind::RightSquareBracket => self.closing(']'),
            TokenKind::RightCurlyBracket => self.closing('}'),
            _ => {
                // The space between a date and its time.
                if self.after_atom && !self.line.ends_with('.') {
                    self.space();
                }
                self.line.push_str(text);
            }
        }
        if kind != TokenKind::Whitespace {
            self.after_atom = kind == TokenKind::Atom;
        }
    }

    fn space(&mut self) {
        if !self.line.ends_with(' ') {
            self.line.push(' ');
        }
    }

    fn opening(&mut self, bracket: &str) {
        self.line.push_str(bracket);
        self.open += 1;
    }

    fn closing(&mut self, bracket: char) {
        self.open = self.open.saturating_sub(1);
        if self.line.trim().is_empty() {
            // A closing bracket at the beginning of a line stands where its opening line began.
            self.depth = self.depth.min(self.open);
            self.line.clear();
        } else {
            let trailing = self.line.trim_end().strip_suffix(',').map_or(self.line.trim_end().len(), str::len);
            self.line.truncate(trailing);
            if bracket == '}' && !self.line.ends_with('{') {
                self.line.push(' ');
            }
        }
        self.line.push(bracket);
    }

    fn newline(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim();
        let depth = std::mem::replace(&mut self.depth, self.open);
        if line.is_empty() {
            self.blank += usize::from(self.open == 0);
            return;
        }
        if line.starts_with('#') && depth == 0 {
            self.comment(line);
            return;
        }
        self.separate(self.heading || self.blank > 0);
        self.text.push_str(&" ".repeat(depth * 2));
        self.text.push_str(line);
        self.text.push('\n');
        self.heading = false;
        self.blank = 0;
        self.value &= self.open > 0;
    }

    /// Comments wait until it is known what follows: a heading is set apart together with its comments.
    fn comment(&mut self, line: &str) {
        if self.blank > 0 {
            // A blank line within comments ends a block that is about nothing in particular.
            self.separate(true);
            self.blank = 0;
            self.blank_line();
        }
        self.comments.push_str(line);
        self.comments.push('\n');
    }

    fn separate(&mut self, blank: bool) {
        if blank {
            self.blank_line();
        }
        if !self.comments.is_empty() {
            self.text.push_str(&std::mem::take(&mut self.comments));
            if self.blank > 0 {
                self.text.push('\n');
            }
        }
    }

    fn blank_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn finish(mut self) -> String {
        self.newline();
        self.blank = 0;
        self.separate(false);
        let end = self.text.trim_end().len();
        self.text.truncate(end);
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text
    }
}

/// Columns of a Cedar line before it is broken.
const LINE: usize = 100;
/// Columns of a step of indentation in Cedar.
const INDENT: isize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_laid_out_one_way() {
        let text = "# The file.\n\n\n\n  [role.a]   # first\nallow=[ \"x\",\"y\" , ]\ndescription   =   \"d\"\n# About b.\n# More.\n[role.b]\n\n\ndeny = [\n\"x\",\n      # why\n    \"y\", # here\n]\nwhen.params.a={min=1,max = 2 }\n[[case]]\nparams = {  }\nt = 2026-01-05 12:00:00\nf = -1.5\n\"q.r\".s = '''\nraw  = x\n'''\n";
        let expected = "# The file.\n\n[role.a] # first\nallow = [\"x\", \"y\"]\ndescription = \"d\"\n\n# About b.\n# More.\n[role.b]\n\ndeny = [\n  \"x\",\n  # why\n  \"y\", # here\n]\nwhen.params.a = { min = 1, max = 2 }\n\n[[case]]\nparams = {}\nt = 2026-01-05 12:00:00\nf = -1.5\n\"q.r\".s = '''\nraw  = x\n'''\n";
        assert_eq!(format_toml(text).as_deref(), Ok(expected));
        assert_eq!(format_toml(expected).as_deref(), Ok(expected));
        assert_eq!(format_toml("").as_deref(), Ok(""));
        assert!(matches!(format_toml("a = "), Err(FormatError::Syntax(_))));
    }

    #[test]
    fn cedar_is_laid_out_by_cedar() {
        let formatted = format("x.cedar", "permit(principal,action,resource)when{context.delegated};");
        let expected = "permit (principal, action, resource)\nwhen { context.delegated };\n";
        assert_eq!(formatted.as_deref(), Ok(expected));
        assert_eq!(format("x.cedar", expected).as_deref(), Ok(expected));
        assert!(format("x.cedar", "permit(").is_err());
    }
}
