//! Text into words and punctuation.

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A name, number, directive or opcode, dots included.
    Word(&'a str),
    Punctuation(char),
    /// What stands between quotes.
    Quoted(&'a str),
}

/// The tokens with their lines, counted from 1.
pub(crate) fn tokens(text: &str) -> Vec<(Token<'_>, u32)> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '\n' => {
                line += 1;
                1
            }
            c if c.is_whitespace() => c.len_utf8(),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => {
                let len = rest.find("*/").map_or(rest.len(), |end| end + 2);
                line += rest[..len].matches('\n').count() as u32;
                len
            }
            '"' => {
                let inner = rest[1..].find('"').unwrap_or(rest.len() - 1);
                found.push((Token::Quoted(&rest[1..=inner]), line));
                (inner + 2).min(rest.len())
            }
            c if is_word(c) => {
                let len = word_len(rest);
                found.push((Token::Word(&rest[..len]), line));
                len
            }
            c => {
                found.push((Token::Punctuation(c), line));
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// A word, in which a double colon (`L1::no_allocate`) is part of it and a single one is a label's end.
fn word_len(text: &str) -> usize {
    let mut len = 0;
    loop {
        len += text[len..].find(|c| !is_word(c)).unwrap_or(text.len() - len);
        if !text[len..].starts_with("::") {
            return len;
        }
        len += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_comments_and_cache_hints_are_told_apart() {
        let text =
            "$L_1: // x\n/* a\nb */ ld.global.L1::no_allocate.f32 %f1, [%rd1+-4];\n.pragma \"no\";";
        let words: Vec<_> =
            tokens(text).into_iter().map(|(token, line)| (format!("{token:?}"), line)).collect();
        assert_eq!(words[0].0, "Word(\"$L_1\")");
        assert_eq!(words[1].0, "Punctuation(':')");
        assert_eq!(words[2], ("Word(\"ld.global.L1::no_allocate.f32\")".to_owned(), 3));
        assert_eq!(words.last().map(|(_, line)| *line), Some(4));
        assert!(words.contains(&("Quoted(\"no\")".to_owned(), 4)));
    }
}
