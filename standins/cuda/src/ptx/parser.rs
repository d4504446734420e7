//! Tokens into declarations and statements, still by name.

use super::PtxError;
use super::lexer::{Token, tokens};
use super::types::Type;
use std::collections::BTreeSet;

/// A module's text, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Parsed<'a> {
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) shared: Vec<Storage<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
}

/// A `.global` or `.const` variable.
#[derive(Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    /// Bytes in all.
    pub(crate) bytes: u64,
    element: Type,
    values: Vec<Operand<'a>>,
}

/// Named bytes of a function or block: `.shared`, `.local` or `.param`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage<'a> {
    pub(crate) name: &'a str,
    pub(crate) space: &'a str,
    pub(crate) align: u64,
    /// Bytes; 0 for dynamic shared memory.
    pub(crate) bytes: u64,
}

/// A kernel or a device function.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_kernel: bool,
    pub(crate) parameters: Vec<Storage<'a>>,
    pub(crate) results: Vec<Storage<'a>>,
    pub(crate) storage: Vec<Storage<'a>>,
    pub(crate) max_threads: Option<u32>,
    registers: BTreeSet<&'a str>,
    register_families: BTreeSet<&'a str>,
    pub(crate) statements: Vec<Statement<'a>>,
}

/// A line of a function's body.
#[derive(Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) line: u32,
    pub(crate) kind: StatementKind<'a>,
}

#[derive(Debug)]
pub(crate) enum StatementKind<'a> {
    Label(&'a str),
    /// The places that an indexed branch may go to.
    Targets(Vec<Operand<'a>>),
    Instruction {
        /// Predicate, and whether it is negated.
        guard: Option<(&'a str, bool)>,
        opcode: &'a str,
        operands: Vec<Operand<'a>>,
    },
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, special register, variable, function or label.
    Name(&'a str),
    /// The bits of a number; integers are sign-extended.
    Number(u64),
    /// `a+8` outside of brackets.
    Sum(&'a str, i64),
    /// `[base+offset]`.
    Address(Box<Operand<'a>>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `(a, b)`.
    List(Vec<Operand<'a>>),
    /// `a|b`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `!p`.
    Not(&'a str),
}

impl Function<'_> {
    /// Whether a name is one of this function's registers.
    pub(crate) fn has_register(&self, name: &str) -> bool {
        let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
        self.registers.contains(name) || (family != name && self.register_families.contains(family))
    }
}

impl Variable<'_> {
    /// The bytes that the variable begins with.
    pub(crate) fn initial_bytes(&self, address_of: impl Fn(&str) -> Option<u64>) -> Vec<u8> {
        let each = usize::from(self.element.bytes());
        let mut bytes: Vec<u8> = Vec::with_capacity(self.bytes as usize);
        for value in &self.values {
            let value = match value {
                Operand::Number(bits) => *bits,
                Operand::Name(name) => address_of(name).unwrap_or(0),
                Operand::Sum(name, offset) => {
                    address_of(name).unwrap_or(0).wrapping_add_signed(*offset)
                }
                _ => 0,
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..each]);
        }
        bytes.resize(self.bytes as usize, 0);
        bytes
    }
}

/// Takes a module's text apart.
pub(crate) fn parse(text: &str) -> Result<Parsed<'_>, PtxError> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    let mut parsed = Parsed::default();
    while let Some(token) = parser.peek() {
        match token {
            Token::Word(".version" | ".target" | ".address_size" | ".file" | ".loc") => {
                parser.skip_line()
            }
            Token::Word(".section") => parser.skip_section()?,
            Token::Word(".pragma") => parser.skip_past(';'),
            Token::Word(".visible" | ".extern" | ".weak" | ".common") => parser.at += 1,
            Token::Word(".entry" | ".func") => {
                if let Some(function) = parser.function()? {
                    parsed.functions.push(function);
                }
            }
            Token::Word(".global" | ".const") => parsed.variables.push(parser.variable()?),
            Token::Word(".shared") => parsed.shared.push(parser.storage()?),
            Token::Punctuation(';') => parser.at += 1,
            _ => return Err(parser.unexpected("a declaration")),
        }
    }
    Ok(parsed)
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn unexpected(&self, wanted: &'static str) -> PtxError {
        let found = self.peek().map_or("the end".to_owned(), |token| match token {
            Token::Word(word) | Token::Quoted(word) => word.to_owned(),
            Token::Punctuation(c) => c.to_string(),
        });
        PtxError::Syntax { line: self.line(), wanted, found }
    }

    fn word(&mut self, wanted: &'static str) -> Result<&'a str, PtxError> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.unexpected(wanted)),
        }
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(Token::Punctuation(c));
        self.at += usize::from(found);
        found
    }

    fn require(&mut self, c: char, wanted: &'static str) -> Result<(), PtxError> {
        if self.take(c) { Ok(()) } else { Err(self.unexpected(wanted)) }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_past(&mut self, c: char) {
        while self.at < self.tokens.len() && !self.take(c) {
            self.at += 1;
        }
    }

    /// Debug sections: braces without inner ones.
    fn skip_section(&mut self) -> Result<(), PtxError> {
        self.skip_past('{');
        self.skip_past('}');
        Ok(())
    }

    fn number(&mut self, wanted: &'static str) -> Result<u64, PtxError> {
        match self.operand()? {
            Operand::Number(bits) => Ok(bits),
            _ => Err(self.unexpected(wanted)),
        }
    }

    /// `.space .align 4 .b8 name[16]`, without what follows. Gives the element's type as well.
    fn declaration(&mut self) -> Result<(Storage<'a>, Type), PtxError> {
        let space = self.word("a state space")?;
        let (mut align, mut element, mut lanes) = (None, None, 1);
        let name = loop {
            let word = self.word("a name")?;
            match word {
                ".align" => align = Some(self.number("an alignment")?),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ => match word.strip_prefix('.') {
                    Some(suffix) => {
                        element =
                            Some(Type::parse(suffix).ok_or_else(|| PtxError::Unsupported {
                                line: self.line(),
                                what: format!("the declaration with {word}"),
                            })?);
                    }
                    None => break word,
                },
            }
        };
        let element = element.ok_or_else(|| self.unexpected("a type"))?;
        let mut count: u64 = lanes;
        while self.take('[') {
            // An empty pair is dynamic shared memory.
            count = if self.peek() == Some(Token::Punctuation(']')) {
                0
            } else {
                count * self.number("a length")?
            };
            self.require(']', "]")?;
        }
        let each = u64::from(element.bytes());
        let align = align.unwrap_or(each * lanes).max(1);
        Ok((Storage { name, space, align, bytes: each * count }, element))
    }

    fn storage(&mut self) -> Result<Storage<'a>, PtxError> {
        let (storage, _) = self.declaration()?;
        self.require(';', ";")?;
        Ok(storage)
    }

    fn variable(&mut self) -> Result<Variable<'a>, PtxError> {
        let (storage, element) = self.declaration()?;
        let mut values = Vec::new();
        if self.take('=') {
            values = match self.operand()? {
                Operand::Vector(values) => values,
                value => vec![value],
            };
        }
        self.require(';', ";")?;
        Ok(Variable { name: storage.name, bytes: storage.bytes, element, values })
    }

    fn parameter_list(&mut self) -> Result<Vec<Storage<'a>>, PtxError> {
        let mut parameters = Vec::new();
        while !self.take(')') {
            parameters.push(self.declaration()?.0);
            self.take(',');
        }
        Ok(parameters)
    }

    /// A kernel or function; `None` for one that is only declared.
    fn function(&mut self) -> Result<Option<Function<'a>>, PtxError> {
        let is_kernel = self.word(".entry or .func")? == ".entry";
        while self.peek() == Some(Token::Word(".noreturn")) {
            self.at += 1;
        }
        let results = if self.take('(') { self.parameter_list()? } else { Vec::new() };
        let name = self.word("a name")?;
        let parameters = if self.take('(') { self.parameter_list()? } else { Vec::new() };
        let mut function = Function {
            name,
            is_kernel,
            parameters,
            results,
            storage: Vec::new(),
            max_threads: None,
            registers: BTreeSet::new(),
            register_families: BTreeSet::new(),
            statements: Vec::new(),
        };
        while !self.take('{') {
            if self.take(';') {
                return Ok(None);
            }
            if let ".maxntid" | ".reqntid" = self.word("a function's body")? {
                let mut product = self.number("a thread count")?;
                while self.take(',') {
                    product *= self.number("a thread count")?;
                }
                function.max_threads = u32::try_from(product).ok();
            } else {
                // Other tuning hints take numbers that do not matter here.
                while matches!(self.peek(), Some(Token::Word(word)) if word.starts_with(|c: char| c.is_ascii_digit()))
                {
                    self.at += 1;
                    self.take(',');
                }
            }
        }
        self.body(&mut function)?;
        Ok(Some(function))
    }

    fn body(&mut self, function: &mut Function<'a>) -> Result<(), PtxError> {
        let mut depth = 1;
        while depth > 0 {
            let line = self.line();
            if self.take('{') {
                depth += 1;
            } else if self.take('}') {
                depth -= 1;
            } else if !self.take(';')
                && let Some(kind) = self.statement(function)?
            {
                function.statements.push(Statement { line, kind });
            }
        }
        Ok(())
    }

    fn statement(
        &mut self,
        function: &mut Function<'a>,
    ) -> Result<Option<StatementKind<'a>>, PtxError> {
        match self.peek() {
            Some(Token::Word(".reg")) => {
                self.registers(function)?;
                return Ok(None);
            }
            Some(Token::Word(".shared" | ".local" | ".param")) => {
                let storage = self.storage()?;
                function.storage.push(storage);
                return Ok(None);
            }
            Some(Token::Word(".loc" | ".file")) => {
                self.skip_line();
                return Ok(None);
            }
            Some(Token::Word(".pragma")) => {
                self.skip_past(';');
                return Ok(None);
            }
            Some(Token::Word(".branchtargets")) => {
                self.at += 1;
                return Ok(Some(StatementKind::Targets(self.operands()?)));
            }
            _ => {}
        }
        let guard = if self.take('@') {
            let negated = self.take('!');
            Some((self.word("a predicate")?, negated))
        } else {
            None
        };
        let opcode = self.word("an instruction")?;
        if guard.is_none() && self.take(':') {
            return Ok(Some(StatementKind::Label(opcode)));
        }
        Ok(Some(StatementKind::Instruction { guard, opcode, operands: self.operands()? }))
    }

    fn registers(&mut self, function: &mut Function<'a>) -> Result<(), PtxError> {
        self.at += 1;
        self.word("a register type")?;
        loop {
            let name = self.word("a register")?;
            if self.take('<') {
                self.number("a count")?;
                self.require('>', ">")?;
                function.register_families.insert(name);
            } else {
                function.registers.insert(name);
            }
            if !self.take(',') {
                return self.require(';', ";");
            }
        }
    }

    /// Operands up to the semicolon.
    fn operands(&mut self) -> Result<Vec<Operand<'a>>, PtxError> {
        let mut operands = Vec::new();
        while !self.take(';') {
            operands.push(self.operand()?);
            if !self.take(',') && self.peek() != Some(Token::Punctuation(';')) {
                return Err(self.unexpected(", or ;"));
            }
        }
        Ok(operands)
    }

    fn group(&mut self, close: char) -> Result<Vec<Operand<'a>>, PtxError> {
        let mut inner = Vec::new();
        while !self.take(close) {
            inner.push(self.operand()?);
            self.take(',');
        }
        Ok(inner)
    }

    fn operand(&mut self) -> Result<Operand<'a>, PtxError> {
        if self.take('{') {
            return Ok(Operand::Vector(self.group('}')?));
        }
        if self.take('(') {
            return Ok(Operand::List(self.group(')')?));
        }
        if self.take('[') {
            let (base, offset) = match self.operand()? {
                Operand::Sum(name, offset) => (Operand::Name(name), offset),
                base => (base, 0),
            };
            self.require(']', "]")?;
            return Ok(Operand::Address(Box::new(base), offset));
        }
        if self.take('!') {
            return Ok(Operand::Not(self.word("a predicate")?));
        }
        if self.take('-') {
            return Ok(Operand::Number(self.number("a number")?.wrapping_neg()));
        }
        let word = self.word("an operand")?;
        if let Some(bits) = number_bits(word) {
            return Ok(Operand::Number(bits));
        }
        if self.take('|') {
            let second = self.operand()?;
            return Ok(Operand::Pair(Box::new(Operand::Name(word)), Box::new(second)));
        }
        if self.take('+') {
            return Ok(Operand::Sum(word, self.number("an offset")? as i64));
        }
        Ok(Operand::Name(word))
    }
}

/// The bits of a number: decimal, hexadecimal, octal, binary, `0f`/`0d` with the bits of a float; `None` for a name.
fn number_bits(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    match word.get(..2) {
        Some("0x" | "0X") => radix(&word[2..], 16),
        Some("0f" | "0F") => radix(&word[2..], 16),
        Some("0d" | "0D") => radix(&word[2..], 16),
        Some("0b" | "0B") => radix(&word[2..], 2),
        _ if word.starts_with(|c: char| c.is_ascii_digit()) => {
            radix(word, 10).or_else(|| word.parse::<f64>().ok().map(f64::to_bits))
        }
        _ => None,
    }
}
