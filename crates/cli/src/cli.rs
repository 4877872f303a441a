//! The command line as a whole: the list of commands, and what all of them share.
//! Never decides what a command does: that is in the command's own file.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::exit::{self, Exit, Failure};
use crate::logging::{self, LogFormat};
use crate::output::Output;
use crate::{
    authd, call, completions, config, demo, dev, exporter, gateway, init, keys, man, mcp, ping, pipe, policy, records,
    revocation, serve, server, setup, token, tools, top,
};

/// Secure JSON-RPC 2.0 over NATS: signed calls, replay protection, access policies, signed answers.
#[derive(Parser)]
#[command(
    name = "sealwire",
    version,
    max_term_width = WIDTH,
    after_help = EXAMPLES,
    after_long_help = exit::table(EXAMPLES)
)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// The widest line of help.
const WIDTH: usize = 100;

/// The options of every command.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
struct Common {
    /// Print results as JSON on stdout and everything else as JSON lines on stderr, errors as {"error": {"exit": …, …}}
    #[arg(long, global = true)]
    json: bool,
    /// Format of log lines on stderr: text or json. Default: text, or json with --json. Set RUST_LOG to filter them, for
    /// example RUST_LOG=sealwire=debug
    #[arg(long, global = true, value_enum, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

/// Prints what clap says of the command line: help, or an error. The options may not be parsed, so `--json` is looked up by hand.
pub(crate) fn misused(mut error: clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        let mut lines = Vec::new();
        named(&Cli::command(), "sealwire", word, &mut lines);
        let tip = |line: String| StyledStr::from(format!("there is `{line}`"));
        if !lines.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(lines.into_iter().map(tip).collect()));
        }
    }
    let is_json = std::env::args_os().any(|word| word == "--json");
    if !error.use_stderr() {
        // Help and version are what was asked for, so whoever asked learns if they could not be written.
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        let Err(unwritten) = printed else { return Exit::Ok.into() };
        let failure = Failure::output(&unwritten);
        Output::new(is_json).failure(&failure);
        return failure.exit().into();
    }
    if !is_json {
        // There is nowhere left to say that stderr cannot be written to.
        let _ = error.print();
    } else {
        let text = error.render().to_string();
        let text = text.split("\n\nUsage:").next().unwrap_or_default();
        let message = text.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
        Output::new(true).failure(&Failure::new(Exit::Usage, message).help("`--help` lists commands and options"));
    }
    Exit::Usage.into()
}

/// Finds every command below `command` with this name: the user looked for it in the wrong group.
fn named(command: &clap::Command, path: &str, name: &str, found: &mut Vec<String>) {
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name());
        named(inner, &path, name, found);
        if inner.get_name() == name {
            found.push(path);
        }
    }
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Dev(dev::Dev),
    Init(init::Init),
    Serve(serve::Serve),
    Ping(ping::Ping),
    NatsServer(server::Server),
    Call(call::single::Call),
    Notify(call::notify::Notify),
    Batch(call::batch::Batch),
    Send(call::send::Send),
    Watch(call::stream::Watch),
    Bench(call::bench::Bench),
    Discover(call::discover::Discover),
    /// Calls that wait for people: list them, look at one, approve or deny it
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire approvals list bank --creds tess.creds.json
  sealwire approvals show bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s
  sealwire approvals approve bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s"
    )]
    Approvals(call::approvals::Approvals),
    /// Calls for which nobody waits: how one is, what it came to, its end
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire call video video/render '[\"film.mov\"]' --detach
  sealwire task wait video video/render Zk3mXw0fQ2a1yq7V9tBcDA
  sealwire task cancel video video/render Zk3mXw0fQ2a1yq7V9tBcDA"
    )]
    Task(call::task::Tasks),
    Mcp(mcp::Mcp),
    Pipe(pipe::Pipe),
    Gateway(gateway::Gateway),
    Authd(authd::Authd),
    Exporter(exporter::Exporter),
    Top(top::Top),
    /// Keys of agents, services and token issuers: create, grant, pin, rotate, retire, revoke, list
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire keys new-agent planner --service dev/math=math.ring.json
  sealwire keys list math.ring.json
  sealwire keys revoke planner.k1 --ring math.ring.json"
    )]
    Keys(keys::Keys),
    /// Access tokens for development: issue, inspect, revoke
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire token issue --key token-key.json --subject planner \\
      --audience dev/math --role calc --out planner.jwt
  sealwire token inspect < planner.jwt"
    )]
    Token(token::Token),
    /// Access policies: check, test, explain, review, compare and format the files
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire policy check policies
  sealwire policy test policies
  sealwire policy explain --agent planner --role calc --method math/add"
    )]
    Policy(policy::Policy),
    Revoke(revocation::revoke::Revoke),
    Restore(revocation::restore::Restore),
    Revocations(revocation::revocations::Revocations),
    /// The record of calls: who called which method, with what outcome
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire records search --method 'bank/*' --since 1h
  sealwire records show AAECAwQFBgcICQoLDA0ODw
  sealwire records check
  sealwire records report --policies policies"
    )]
    Records(records::Records),
    /// Tools and prompts of MCP servers: list them, see what has changed, approve them
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire tools list
  sealwire tools diff
  sealwire tools approve"
    )]
    Tools(tools::Tools),
    /// Complete setups: keys, broker users, certificates, configuration
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire setup cluster --out /sealwire
  sealwire setup service ledger --out /sealwire"
    )]
    Setup(setup::Setup),
    /// The configuration file: a reference of all keys, and its JSON Schema
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealwire config reference
  sealwire config schema > sealwire.schema.json"
    )]
    Config(config::Commands),
    Completions(completions::Completions),
    Man(man::Manual),
}

impl Cli {
    /// Runs the command to completion and reports a failure on stderr.
    pub(crate) fn run(self) -> ExitCode {
        let usual = if self.common.json { LogFormat::Json } else { LogFormat::Text };
        logging::start(self.common.log_format.unwrap_or(usual), self.command.log_level());
        let out = Output::new(self.common.json);
        let command = AssertUnwindSafe(|| self.command.run(&out));
        let ended = catch_unwind(command).unwrap_or_else(|_panic| Err(Failure::bug()));
        match ended {
            Ok(exit) => exit.into(),
            Err(failure) => {
                out.failure(&failure);
                failure.exit().into()
            }
        }
    }
}

impl Command {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Demo(command) => command.run(out),
            Self::Dev(command) => command.run(out),
            Self::Init(command) => command.run(out),
            Self::Serve(command) => command.run(out),
            Self::Ping(command) => command.run(out),
            Self::NatsServer(command) => command.run(out),
            Self::Call(command) => command.run(out),
            Self::Notify(command) => command.run(out),
            Self::Batch(command) => command.run(out),
            Self::Send(command) => command.run(out),
            Self::Watch(command) => command.run(out),
            Self::Bench(command) => command.run(out),
            Self::Discover(command) => command.run(out),
            Self::Approvals(command) => command.run(out),
            Self::Task(command) => command.run(out),
            Self::Mcp(command) => command.run(),
            Self::Pipe(command) => command.run(),
            Self::Gateway(command) => command.run(out),
            Self::Authd(command) => command.run(out),
            Self::Exporter(command) => command.run(out),
            Self::Top(command) => command.run(out),
            Self::Keys(command) => command.run(out),
            Self::Token(command) => command.run(out),
            Self::Policy(command) => command.run(out),
            Self::Revoke(command) => command.run(out),
            Self::Restore(command) => command.run(out),
            Self::Revocations(command) => command.run(out),
            Self::Records(command) => command.run(out),
            Self::Tools(command) => command.run(out),
            Self::Setup(command) => command.run(out),
            Self::Config(command) => command.run(out),
            Self::Completions(command) => command.run(out),
            Self::Man(command) => command.run(Cli::command(), out),
        }
    }

    /// The log filter if RUST_LOG is not set: a service logs what it does, other commands only what goes wrong. async_nats is
    /// off, since it would log a second time, in its own words, what we are about to report.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Dev(_) | Self::Serve(_) | Self::Gateway(_) | Self::Authd(_) | Self::Exporter(_) => {
                "warn,sealwire=info,async_nats=off"
            }
            // `tools` prints what the log would say about the tools, and says which lines of a server it cannot use.
            Self::Tools(_) => "error,sealwire::backend::line=warn",
            Self::Demo(_) | Self::NatsServer(_) => "error",
            // It says itself what is wrong, on a screen that a line would spoil.
            Self::Top(_) => "off",
            Self::Ping(_)
            | Self::Init(_)
            | Self::Call(_)
            | Self::Notify(_)
            | Self::Batch(_)
            | Self::Send(_)
            | Self::Watch(_)
            | Self::Bench(_)
            | Self::Discover(_)
            | Self::Approvals(_)
            | Self::Task(_)
            | Self::Mcp(_)
            | Self::Pipe(_)
            | Self::Keys(_)
            | Self::Token(_)
            | Self::Policy(_)
            | Self::Revoke(_)
            | Self::Restore(_)
            | Self::Revocations(_)
            | Self::Records(_)
            | Self::Setup(_)
            | Self::Config(_)
            | Self::Completions(_)
            | Self::Man(_) => "warn,async_nats=off",
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  sealwire demo
  sealwire dev
  sealwire init hello
  sealwire call --creds sealwire-dev/planner.creds.json demo math/add '[2, 3]'
  sealwire keys new-agent planner --service dev/math=math.ring.json
  sealwire token issue --key token-key.json --subject planner --role calc \\
      --audience dev/math --cnf-kid planner.k1 --out planner.jwt
  sealwire policy check policies
  sealwire completions bash > /etc/bash_completion.d/sealwire

`sealwire help COMMAND` shows examples for each command.";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _, Parser as _};

    use super::WIDTH;

    /// The words of a line as a shell splits them, up to the first `|`, `<`, `>` or `#`.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                '|' | '<' | '>' | '#' if !quoted => break,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    /// Every example in the help of `command` and its subcommands.
    fn examples(command: &Command, found: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.split_once("Examples:\n").map_or("", |(_, lines)| lines).replace("\\\n", " ");
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "too wide for a terminal: {line}");
        }
        found.extend(lines.lines().filter_map(|line| Some(line.get(line.find("sealwire ")?..)?.to_owned())));
        command.get_subcommands().for_each(|command| examples(command, found));
    }

    #[test]
    fn every_example_in_the_help_is_a_command() {
        let mut found = Vec::new();
        examples(&super::Cli::command(), &mut found);
        assert!(found.len() > 30, "{found:?}");
        for line in found.iter().filter(|line| !line.contains('`')) {
            if let Err(error) = super::Cli::try_parse_from(words(line)) {
                panic!("{line}: {error}");
            }
        }
    }

    /// The help of `command` and its subcommands, at the greatest width.
    fn pages(command: &Command, path: &str, found: &mut Vec<(String, String)>) {
        let path = format!("{path} {}", command.get_name());
        for text in [command.clone().render_help(), command.clone().render_long_help()] {
            found.push((path.clone(), text.to_string()));
        }
        command.get_subcommands().for_each(|command| pages(command, &path, found));
    }

    #[test]
    fn every_page_of_help_has_an_example_and_fits_a_terminal() {
        let mut found = Vec::new();
        let mut command = super::Cli::command().term_width(WIDTH).disable_help_subcommand(true);
        command.build();
        pages(&command, "", &mut found);
        assert!(found.len() > 80, "{}", found.len());
        let mut wrong = Vec::new();
        for (path, text) in &found {
            if !text.contains("Examples:\n") {
                wrong.push(format!("{path}: no example"));
            }
            wrong
                .extend(text.lines().filter(|line| line.chars().count() > WIDTH).map(|line| format!("{path}: {line}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// What the command, or a provider of tokens, draws by lot and writes in base64url: one in 64 begins with a hyphen.
    const DRAWN: [&str; 4] = ["DIGEST", "JTI", "KEY", "THUMBPRINT"];

    /// The arguments of `command` and its subcommands that take what is drawn, and whether a hyphen may come first.
    fn drawn(command: &Command, path: &str, found: &mut Vec<(String, bool)>) {
        let path = format!("{path} {}", command.get_name());
        for arg in command.get_arguments() {
            if arg.get_value_names().is_some_and(|names| names.iter().any(|name| DRAWN.contains(&name.as_str()))) {
                found.push((format!("{path} {}", arg.get_id()), arg.is_allow_hyphen_values_set()));
            }
        }
        command.get_subcommands().for_each(|command| drawn(command, &path, found));
    }

    #[test]
    fn what_is_drawn_by_lot_may_begin_with_a_hyphen() {
        let mut found = Vec::new();
        drawn(&super::Cli::command(), "", &mut found);
        assert!(found.len() > 8, "{found:?}");
        let refused: Vec<_> = found.iter().filter(|(_, may)| !may).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let words = ["sealwire", "approvals", "approve", "--digest", "-M4O8jisfMEIZIfqWgA6Rl4NQyuyPvpNm9XWR7m8KtU"];
        if let Err(error) = super::Cli::try_parse_from(words.into_iter().chain(["demo", "bob.0ZN3W4kt"])) {
            panic!("{error}");
        }
    }

    #[test]
    fn command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
