// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command line of a unit file, as systemd reads it (systemd.service(5), "Command lines").
//!
//! Words stay as they are written, with their quotes, escapes, `%` and `$`: systemd reads them again.

/// What may stand before a program.
const PREFIXES: &str = "-@:+!|";

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Without `@`, which is [`argv0`](Self::argv0).
    pub prefixes: String,
    pub program: String,
    /// What the program is told as its own name.
    pub argv0: Option<String>,
    pub arguments: Vec<String>,
}

impl CommandLine {
    /// The commands of a line: a `;` for itself stands between them.
    pub(super) fn all(line: &str) -> Vec<Self> {
        words(line).split(|word| word == ";").filter_map(Self::of).collect()
    }

    fn of(words: &[String]) -> Option<Self> {
        let (first, rest) = words.split_first()?;
        let program = first.trim_start_matches(|letter| PREFIXES.contains(letter));
        let prefixes = &first[..first.len() - program.len()];
        let named = prefixes.contains('@');
        let argv0 = rest.first().filter(|_| named).cloned();
        Some(Self {
            prefixes: prefixes.replace('@', ""),
            program: program.to_owned(),
            arguments: rest.iter().skip(usize::from(argv0.is_some())).cloned().collect(),
            argv0,
        })
    }

    /// Whether systemd runs it with all rights of root, whatever the unit says.
    pub(super) fn is_privileged(&self) -> bool {
        self.prefixes.contains('+')
    }

    /// Whether systemd runs it as root, whoever the unit's user is. `!!` does so only where the kernel has no ambient capabilities.
    pub(super) fn is_as_root(&self) -> bool {
        self.is_privileged() || self.prefixes.contains('!') && !self.prefixes.contains("!!")
    }

    /// Whether `$` stands for variables.
    pub(super) fn is_substituted(&self) -> bool {
        !self.prefixes.contains(':')
    }

    /// The same command as the last words of `wrapper`'s.
    pub(super) fn under(&self, wrapper: &[String]) -> String {
        let argv0 = self.argv0.iter().flat_map(|name| ["--argv0".to_owned(), name.clone()]);
        let own = ["--".to_owned(), self.program.clone()];
        let words: Vec<String> =
            wrapper.iter().cloned().chain(argv0).chain(own).chain(self.arguments.clone()).collect();
        format!("{}{}", self.prefixes, words.join(" "))
    }
}

/// A word that systemd reads as this text.
pub(super) fn quoted(text: &str, is_substituted: bool) -> String {
    let mut text = text.replace('%', "%%");
    if is_substituted {
        text = text.replace('$', "$$");
    }
    match text.contains(['"', '\'', '\\', ' ', ';']) || text.is_empty() {
        true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        false => text,
    }
}

/// The text of a word that [`quoted`] wrote.
pub(super) fn unquoted(word: &str, is_substituted: bool) -> String {
    let mut text = match word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) => {
            let mut letters = inner.chars();
            let next = || match letters.next()? {
                '\\' => letters.next(),
                letter => Some(letter),
            };
            std::iter::from_fn(next).collect()
        }
        None => word.to_owned(),
    };
    if is_substituted {
        text = text.replace("$$", "$");
    }
    text.replace("%%", "%")
}

/// Splits at blanks outside of quotes.
pub(super) fn words(line: &str) -> Vec<String> {
    let (mut found, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', _) => {
                word.push(letter);
                word.extend(letters.next());
                continue;
            }
            ('"' | '\'', None) => quote = Some(letter),
            (end, Some(begin)) if end == begin => quote = None,
            (blank, None) if blank.is_whitespace() => {
                if !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
                continue;
            }
            _ => {}
        }
        word.push(letter);
    }
    if !word.is_empty() {
        found.push(word);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(line: &str) -> Vec<String> {
        CommandLine::all(line).iter().map(|command| command.under(&["/usr/bin/fief".into(), "exec".into()])).collect()
    }

    #[test]
    fn a_command_keeps_its_quotes_its_variables_and_its_prefixes() {
        let nginx = r#"/usr/sbin/nginx -g 'daemon on; master_process on;' -c "$CONFIG" %n \; \x20a"#;
        assert_eq!(under(nginx), [format!("/usr/bin/fief exec -- {nginx}")]);
        assert_eq!(under("-:/bin/a  $B"), ["-:/usr/bin/fief exec -- /bin/a $B"]);
        assert_eq!(under("!!/bin/a"), ["!!/usr/bin/fief exec -- /bin/a"]);
    }

    #[test]
    fn a_name_of_its_own_is_told_by_fief() {
        assert_eq!(under("-@/bin/a renamed -x"), ["-/usr/bin/fief exec --argv0 renamed -- /bin/a -x"]);
    }

    #[test]
    fn commands_of_one_line_are_told_apart() {
        assert_eq!(under("/bin/a 1 ; /bin/b"), ["/usr/bin/fief exec -- /bin/a 1", "/usr/bin/fief exec -- /bin/b"]);
        assert_eq!(under("  "), [""; 0]);
    }

    #[test]
    fn a_word_of_ours_is_read_as_it_is_meant() {
        assert_eq!(quoted("shop/gold", true), "shop/gold");
        assert_eq!(quoted("100%-$a", true), "100%%-$$a");
        assert_eq!(quoted("$a", false), "$a");
        assert_eq!(quoted("a\"b\\c", true), "\"a\\\"b\\\\c\"");
        for text in ["shop/gold", "100%-$a", "a\"b\\c", "", "a b;'", "%%", "$$"] {
            for is_substituted in [true, false] {
                assert_eq!(unquoted(&quoted(text, is_substituted), is_substituted), text);
            }
        }
    }
}
