//! How serde renames fields.

/// The rules of `rename_all` that change a field written in `snake_case`.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    Same,
    Upper,
    Camel,
    Pascal,
    Kebab,
    UpperKebab,
}

impl Rule {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "lowercase" | "snake_case" => Self::Same,
            "UPPERCASE" | "SCREAMING_SNAKE_CASE" => Self::Upper,
            "camelCase" => Self::Camel,
            "PascalCase" => Self::Pascal,
            "kebab-case" => Self::Kebab,
            "SCREAMING-KEBAB-CASE" => Self::UpperKebab,
            _ => return None,
        })
    }

    pub(crate) fn apply(self, field: &str) -> String {
        match self {
            Self::Same => field.to_owned(),
            Self::Upper => field.to_ascii_uppercase(),
            Self::Kebab => field.replace('_', "-"),
            Self::UpperKebab => field.to_ascii_uppercase().replace('_', "-"),
            Self::Camel | Self::Pascal => {
                let mut capital = matches!(self, Self::Pascal);
                let mut name = String::new();
                for letter in field.chars() {
                    match letter {
                        '_' => capital = true,
                        _ => name.push(if std::mem::take(&mut capital) { letter.to_ascii_uppercase() } else { letter }),
                    }
                }
                name
            }
        }
    }
}
