//! `sealwire policy skeleton`: writes a policy file for each backend, which declares its methods and allows nothing.
//! Never overwrites a file, and never lets a description become anything but a comment.

use std::path::PathBuf;

use clap::Args;
use sealwire::PolicySet;
use sealwire::decide::{Param, ParamType, ScalarType};
use sealwire_backend::BackendConfig;
use sealwire_backend::{Lock, Tool, catalogue, shown};
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, make_folder, write_new};
use crate::output::Output;
use crate::policies::{FOLDER, known_methods};
use crate::runtime::block_on;
use crate::serve::{lock_beside, quick};
use crate::toml_text::{key, method, text};
use crate::tools::unasked;

/// Write policy files for the backends of a configuration: they declare every method, allow nothing, and suggest rules in comments
///
/// There is one file for each backend. Backends of kind `mcp` are started, asked for their tools and stopped; for the others, the
/// configuration lists the methods. No file is overwritten.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy skeleton
  sealwire policy skeleton new-policies --config sealwire.toml
  sealwire policy skeleton -- mcp-server-time")]
pub(crate) struct Skeleton {
    /// The folder for the new files [default: the policy folder of the configuration]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The configuration file with the backends
    #[arg(long, value_name = "FILE", default_value = "sealwire.toml")]
    config: PathBuf,
    #[command(flatten, next_help_heading = "A server of `sealwire serve mcp`, instead of the backends in the file")]
    server: quick::Server,
}

impl Skeleton {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { folder, config, server } = self;
        let (backends, usual) = if !server.is_named() {
            if server.has_options() {
                return Err(Failure::new(Exit::Usage, "these options are for a server that no file describes")
                    .help("in the file, write them as keys of its `[[backend]]`"));
            }
            let (config, backends) = crate::project::load(&config)?;
            (backends, config.policy.folder)
        } else {
            (vec![server.backend()?], PathBuf::from(FOLDER))
        };
        if backends.is_empty() {
            return Err(Failure::input(format!("`{}` has no `[[backend]]`", config.display()))
                .help("describe one (docs/backends.md), or name an MCP server: sealwire policy skeleton -- COMMAND"));
        }
        let folder = folder.unwrap_or(usual);
        let lock = Lock::load(&lock_beside(&config)).or_fail(Exit::Input)?;
        let working = out.working("asking the backends");
        let offered = block_on(catalogue(&backends, &lock))?.or_fail(Exit::Input)?;
        drop(working);
        let (mut files, mut silent) = (Vec::new(), Vec::new());
        for (backend, (_, tools)) in backends.iter().zip(offered) {
            match tools {
                Ok(tools) => files.push(File::of(backend, &tools)),
                Err(fault) => silent.push(fault),
            }
        }
        let unasked = unasked(&silent);
        if files.is_empty()
            && let Some(failure) = unasked
        {
            return Err(failure);
        }
        if let Some(file) = files.iter().find(|file| file.text.len() > BYTES) {
            let message = format!("`{}` would have more than 1 MiB, which no policy file may have", file.name);
            return Err(Failure::input(message).help("serve fewer of its tools"));
        }
        // It fails, for example, if two backends offer the same method.
        let texts = files.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        PolicySet::from_texts(texts, &known_methods()).map_err(|errors| {
            Failure::new(Exit::PolicyInvalid, "what the backends offer makes no valid policy files").findings(&errors)
        })?;
        let paths: Vec<PathBuf> = files.iter().map(|file| folder.join(&file.name)).collect();
        if let Some(there) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(Failure::input(format!("`{}` is there already", there.display()))
                .help("nothing is overwritten: name another folder, sealwire policy skeleton DIR"));
        }
        make_folder(&folder)?;
        for (position, (path, file)) in paths.iter().zip(&files).enumerate() {
            write_new(path, &file.text).inspect_err(|_| {
                // The files written so far are ours, and would be in the way of the next attempt.
                paths.iter().take(position).for_each(|path| drop(std::fs::remove_file(path)));
            })?;
        }
        // Check the new files together with those already there.
        if let Err(errors) = PolicySet::load(&folder, &known_methods()) {
            paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
            let message =
                format!("the new files do not fit what is in `{}`, and nothing was written", folder.display());
            return Err(Failure::new(Exit::PolicyInvalid, message)
                .findings(&errors)
                .help("name another folder: sealwire policy skeleton DIR"));
        }
        let lines = paths.iter().zip(&files).map(|(path, file)| format!("{}: {}\n", path.display(), file.offers()));
        let written =
            paths.iter().zip(&files).map(|(path, file)| json!({ "file": files::shown(path), "methods": file.methods }));
        out.result(&json!({ "written": written.collect::<Vec<_>>() }), || {
            let folder = folder.display();
            format!(
                "{}\nNothing is allowed yet. Take the `#` off the rules that you want, and then:\n  \
                 sealwire policy check {folder}\n  sealwire policy matrix {folder}",
                lines.collect::<String>()
            )
        })?;
        unasked.map_or(Ok(Exit::Ok), Err)
    }
}

/// The size limit of policy files.
const BYTES: usize = 1 << 20;
/// How much of a description is shown, in lines and characters.
const LINES: usize = 12;
const WIDTH: usize = 400;

struct File {
    name: String,
    text: String,
    methods: usize,
}

impl File {
    fn of(backend: &BackendConfig, tools: &[Tool]) -> Self {
        let kind = format!("{:?}", backend.kind).to_lowercase();
        let role = text(&format!("{}-user", backend.name));
        let mut file = format!(
            "# What the backend `{}` (kind {kind}) offered when `sealwire policy skeleton` wrote this. Nothing is allowed. Take the `#`\n\
             # off the lines of a rule that you want, and off those of the role; put values of your own in place of the examples.\n\
             # Lines that begin with `# | ` are in the words of whoever wrote the program: claims, and no part of the policy.\n\n\
             #[role.{role}]\n#description = \"Whose tokens say so.\"\n",
            backend.name
        );
        for (position, tool) in tools.iter().enumerate() {
            let name = tool.method.as_str();
            let is_usable = name.len() <= 64 && !["role.", "agent."].iter().any(|kept| name.starts_with(kept));
            let rule = if is_usable { name.to_owned() } else { format!("{}-{position}", backend.name) };
            file.push('\n');
            file.push_str(&comment(tool));
            if !tool.is_usable {
                // A service that starts without its server does not have it.
                file.push_str(&format!("# (`{}` is left out)\n", shown(name)));
                continue;
            }
            file.push_str(&method(name, tool.declared.as_deref()));
            file.push_str(&format!("\n#[rule.{}]\n#roles = [{role}]\n#allow = [{}]\n", key(&rule), text(name)));
            for param in tool.declared.iter().flatten() {
                example(param, &mut file);
            }
        }
        Self {
            name: format!("{}.toml", backend.name),
            text: file,
            methods: tools.iter().filter(|tool| tool.is_usable).count(),
        }
    }

    fn offers(&self) -> String {
        format!("{} method{}", self.methods, if self.methods == 1 { "" } else { "s" })
    }
}

/// A tool's description as comment lines, and nothing but comment lines.
fn comment(tool: &Tool) -> String {
    let said = tool.description.as_deref().unwrap_or_default();
    let short: String = said.trim().chars().take(WIDTH).collect();
    let mut lines: Vec<String> = short.lines().take(LINES).map(str::to_owned).collect();
    if short.len() < said.trim().len() || short.lines().count() > LINES {
        lines.push("… and more".to_owned());
    }
    lines.extend(tool.remarks.iter().cloned());
    lines.iter().map(|line| format!("# | {}", shown(&line.replace('\n', " "))).trim_end().to_owned() + "\n").collect()
}

/// An example condition for a parameter of this type, to be replaced.
fn example(param: &Param, file: &mut String) {
    let path = key(param.name());
    let condition = match param.kind() {
        _ if param.is_optional() => "{ present = false }",
        ParamType::String => "{ glob = \"replace-me*\" }",
        ParamType::Integer | ParamType::Number => "{ min = 0, max = 100 }",
        ParamType::Boolean => "false",
        ParamType::List(ScalarType::String) => "{ each_in = [\"replace-me\"], max_size = 10 }",
        ParamType::List(_) => "{ max_size = 10 }",
        // Backends declare no objects.
        kind @ (ParamType::Any | ParamType::Object(_)) => {
            file.push_str(&format!("# (no rule can compare `{}`, of type {kind})\n", shown(&path)));
            return;
        }
    };
    file.push_str(&format!("#when.params.{path} = {condition}\n"));
}
