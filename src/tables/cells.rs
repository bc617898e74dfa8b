//! A column in memory: its values, and the levels by which Parquet says where nulls and lists are.
//!
//! Neighbours: `columns.rs` has the values of a recording, `writer.rs` the file that they go to.

use std::ops::Range;

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedColumnWriter;
use parquet::schema::types::ColumnDescriptor;

use super::schema::{Shape, Value};

/// A column of some rows.
pub struct Cells {
    max_definition: i16,
    max_repetition: i16,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    values: Values,
}

/// The values that are not null.
enum Values {
    Integers(Vec<i64>),
    Booleans(Vec<bool>),
    /// All texts one after the other, and where each is.
    Texts(Vec<u8>, Vec<Range<usize>>),
}

impl Cells {
    /// No rows of a column.
    ///
    /// # Errors
    /// Its type is none of those that the tables have.
    pub fn new(column: &ColumnDescriptor) -> Result<Cells, ParquetError> {
        let values = match column.physical_type() {
            Physical::INT64 => Values::Integers(Vec::new()),
            Physical::BOOLEAN => Values::Booleans(Vec::new()),
            Physical::BYTE_ARRAY => Values::Texts(Vec::new(), Vec::new()),
            other => return Err(ParquetError::NYI(format!("a column of {other}"))),
        };
        Ok(Cells {
            max_definition: column.max_def_level(),
            max_repetition: column.max_rep_level(),
            definition: Vec::new(),
            repetition: Vec::new(),
            values,
        })
    }

    /// Adds a row.
    pub fn push(&mut self, shape: Shape, value: Value<'_>) {
        let (empty, null) = match shape {
            Shape::One | Shape::OneOrNull | Shape::List => (0, 0),
            Shape::ListOfNulls => (0, 1),
            Shape::ListOrNull => (1, 0),
        };
        match value {
            Value::List(values) if values.is_empty() => self.level(empty, 0),
            Value::List(values) => {
                for (index, value) in values.into_iter().enumerate() {
                    let level = if matches!(value, Value::Null) { null } else { self.max_definition };
                    self.level(level, i16::from(index > 0));
                    self.scalar(value);
                }
            }
            Value::Null => self.level(null, 0),
            value => {
                self.level(self.max_definition, 0);
                self.scalar(value);
            }
        }
    }

    fn level(&mut self, definition: i16, repetition: i16) {
        if self.max_definition > 0 {
            self.definition.push(definition);
        }
        if self.max_repetition > 0 {
            self.repetition.push(repetition);
        }
    }

    fn scalar(&mut self, value: Value<'_>) {
        match (&mut self.values, value) {
            (Values::Texts(bytes, ranges), Value::Text(text)) => add_text(bytes, ranges, text.as_bytes()),
            (Values::Texts(bytes, ranges), Value::Bytes(text)) => add_text(bytes, ranges, &text),
            (Values::Integers(numbers), Value::Integer(number)) => numbers.push(number),
            (Values::Booleans(flags), Value::Boolean(flag)) => flags.push(flag),
            _ => {}
        }
    }

    /// Adds the next rows of a file, at most so many, and returns how many there were.
    pub fn read(&mut self, reader: &mut ColumnReader, most: usize) -> Result<usize, ParquetError> {
        let (definition, repetition) = (Some(&mut self.definition), Some(&mut self.repetition));
        let (rows, _, _) = match (&mut self.values, reader) {
            (Values::Integers(numbers), ColumnReader::Int64ColumnReader(reader)) => {
                reader.read_records(most, definition, repetition, numbers)?
            }
            (Values::Booleans(flags), ColumnReader::BoolColumnReader(reader)) => {
                reader.read_records(most, definition, repetition, flags)?
            }
            (Values::Texts(bytes, ranges), ColumnReader::ByteArrayColumnReader(reader)) => {
                let mut texts = Vec::new();
                let read = reader.read_records(most, definition, repetition, &mut texts)?;
                texts.iter().for_each(|text| add_text(bytes, ranges, text.data()));
                read
            }
            _ => return Err(ParquetError::General("a column has another type than before".to_owned())),
        };
        Ok(rows)
    }

    /// How many bytes they take.
    pub fn size(&self) -> usize {
        let values = match &self.values {
            Values::Integers(numbers) => numbers.len() * size_of::<i64>(),
            Values::Booleans(flags) => flags.len(),
            Values::Texts(bytes, ranges) => bytes.len() + ranges.len() * size_of::<Range<usize>>(),
        };
        values + (self.definition.len() + self.repetition.len()) * size_of::<i16>()
    }

    /// The texts, without nulls.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, ranges): (&[u8], &[Range<usize>]) = match &self.values {
            Values::Texts(bytes, ranges) => (bytes, ranges),
            Values::Integers(_) | Values::Booleans(_) => (&[], &[]),
        };
        ranges.iter().map(|range| &bytes[range.clone()])
    }

    /// The order in which the texts are sorted; none if they are, or there are nulls.
    pub fn order(&self) -> Option<Vec<usize>> {
        let texts: Vec<&[u8]> = self.texts().collect();
        if texts.is_sorted() || self.definition.iter().any(|level| *level < self.max_definition) {
            return None;
        }
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|row| texts[*row]);
        Some(order)
    }

    /// The same rows in another order.
    pub fn ordered(self, order: &[usize]) -> Cells {
        let (mut definition, mut repetition) = (Vec::new(), Vec::new());
        let mut values = Vec::with_capacity(order.len());
        if self.max_definition == 0 {
            values.extend_from_slice(order);
        } else {
            definition.reserve(self.definition.len());
            repetition.reserve(self.repetition.len());
            let starts = self.starts();
            for &row in order {
                let [(level, value), (next_level, next_value)] = [starts[row], starts[row + 1]];
                definition.extend_from_slice(&self.definition[level..next_level]);
                if self.max_repetition > 0 {
                    repetition.extend_from_slice(&self.repetition[level..next_level]);
                }
                values.extend(value..next_value);
            }
        }
        let values = match self.values {
            Values::Integers(numbers) => Values::Integers(values.iter().map(|at| numbers[*at]).collect()),
            Values::Booleans(flags) => Values::Booleans(values.iter().map(|at| flags[*at]).collect()),
            Values::Texts(bytes, ranges) => {
                Values::Texts(bytes, values.iter().map(|at| ranges[*at].clone()).collect())
            }
        };
        Cells { definition, repetition, values, ..self }
    }

    /// The first level and the first value of each row, and where the last one ends.
    fn starts(&self) -> Vec<(usize, usize)> {
        let mut starts = Vec::with_capacity(self.definition.len() + 1);
        let mut value = 0;
        for (level, definition) in self.definition.iter().enumerate() {
            if self.max_repetition == 0 || self.repetition[level] == 0 {
                starts.push((level, value));
            }
            value += usize::from(*definition == self.max_definition);
        }
        starts.push((self.definition.len(), value));
        starts
    }

    /// Writes them as a column chunk.
    pub fn write(self, into: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let definition = (self.max_definition > 0).then_some(self.definition.as_slice());
        let repetition = (self.max_repetition > 0).then_some(self.repetition.as_slice());
        match self.values {
            Values::Texts(bytes, ranges) => {
                let bytes = Bytes::from(bytes);
                let texts: Vec<ByteArray> =
                    ranges.into_iter().map(|range| ByteArray::from(bytes.slice(range))).collect();
                into.typed::<ByteArrayType>().write_batch(&texts, definition, repetition)?
            }
            Values::Integers(numbers) => {
                into.typed::<Int64Type>().write_batch(&numbers, definition, repetition)?
            }
            Values::Booleans(flags) => {
                into.typed::<BoolType>().write_batch(&flags, definition, repetition)?
            }
        };
        Ok(())
    }
}

fn add_text(bytes: &mut Vec<u8>, ranges: &mut Vec<Range<usize>>, text: &[u8]) {
    let start = bytes.len();
    bytes.extend_from_slice(text);
    ranges.push(start..bytes.len());
}
