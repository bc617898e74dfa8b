//! Makes a Parquet file of rows, a column of a row group at a time.
//!
//! Types, encodings and nesting are those that every reader of Parquet has had for years: no unsigned numbers, no nested
//! lists, pages of version 1. Neighbour: `columns.rs` has the columns.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{
    Compression, ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{DEFAULT_DATA_PAGE_ROW_COUNT_LIMIT, EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

/// The most rows of a row group: what readers take at once, and prune by its statistics.
const GROUP_ROWS: usize = 100_000;

/// A column of rows `R`.
pub struct Column<R> {
    /// Its name; with a dot, a key of the structs in the list before it.
    pub name: &'static str,
    pub kind: Kind,
    pub shape: Shape,
    pub value: fn(&R) -> Value<'_>,
}

/// The type of a column, or of the elements of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Bytes,
    /// 64 bits with a sign.
    Integer,
    Boolean,
    /// Microseconds since 1970, UTC.
    Time,
}

/// What a row may have in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    One,
    OneOrNull,
    List,
    /// A list whose elements may be null.
    ListOfNulls,
    ListOrNull,
}

/// What a row has in a column.
#[derive(Debug)]
pub enum Value<'r> {
    Null,
    Text(Cow<'r, str>),
    Bytes(Cow<'r, [u8]>),
    /// A number or a time.
    Integer(i64),
    Boolean(bool),
    List(Vec<Value<'r>>),
}

impl<'r, T: Into<Value<'r>>> From<Option<T>> for Value<'r> {
    fn from(value: Option<T>) -> Value<'r> {
        value.map_or(Value::Null, Into::into)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}

impl From<u32> for Value<'_> {
    fn from(value: u32) -> Self {
        Value::Integer(value.into())
    }
}

impl From<i32> for Value<'_> {
    fn from(value: i32) -> Self {
        Value::Integer(value.into())
    }
}

impl From<u64> for Value<'_> {
    /// No file and no count is as large as what does not fit.
    fn from(value: u64) -> Self {
        Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Boolean(value)
    }
}

impl<'r> From<&'r str> for Value<'r> {
    fn from(value: &'r str) -> Value<'r> {
        Value::Text(value.into())
    }
}

impl<'r> From<&'r String> for Value<'r> {
    fn from(value: &'r String) -> Value<'r> {
        Value::Text(value.into())
    }
}

impl<'r> From<Cow<'r, str>> for Value<'r> {
    fn from(value: Cow<'r, str>) -> Value<'r> {
        Value::Text(value)
    }
}

/// A Parquet file of `rows`, which are sorted by the column `sorted_by`.
///
/// In memory, where it is far smaller than the rows: parquet writes each page by itself, and most are a few bytes.
pub fn file<R>(columns: &[Column<R>], rows: &[R], sorted_by: Option<&str>) -> Result<Vec<u8>, ParquetError> {
    let index = columns.iter().position(|column| Some(column.name) == sorted_by);
    let index = index.map(i32::try_from).transpose()?;
    let sorting =
        index.map(|column_idx| vec![SortingColumn { column_idx, descending: false, nulls_first: false }]);
    // A single page has the statistics of its column chunk: its own would make a small file a fifth larger.
    let has_pages = rows.len() > DEFAULT_DATA_PAGE_ROW_COUNT_LIMIT;
    let statistics = if has_pages { EnabledStatistics::Page } else { EnabledStatistics::Chunk };
    let properties = WriterProperties::builder()
        .set_created_by(concat!("agent-snapshot ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(statistics)
        .set_offset_index_disabled(!has_pages)
        .set_sorting_columns(sorting)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema(columns)?, Arc::new(properties))?;
    for rows in rows.chunks(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        for column in columns {
            let missing = || ParquetError::General(format!("no column {}", column.name));
            let mut into = group.next_column()?.ok_or_else(missing)?;
            Cells::of(column, rows).write(&mut into)?;
            into.close()?;
        }
        group.close()?;
    }
    writer.into_inner()
}

/// The schema of the columns.
fn schema<R>(columns: &[Column<R>]) -> Result<TypePtr, ParquetError> {
    let mut fields = Vec::new();
    let mut columns = columns.iter().peekable();
    while let Some(column) = columns.next() {
        fields.push(match column.name.split_once('.') {
            None => field(column.name, column.kind, column.shape)?,
            Some((list, _)) => {
                let mut keys = Vec::new();
                let mut next = Some(column);
                while let Some(column) = next {
                    let key = column.name.rsplit('.').next().unwrap_or_default();
                    let is_nullable = column.shape == Shape::ListOfNulls;
                    keys.push(leaf(key, column.kind, repetition(is_nullable))?);
                    next = columns.next_if(|next| next.name.split_once('.').map(|name| name.0) == Some(list));
                }
                let element = Type::group_type_builder("element")
                    .with_repetition(Repetition::REQUIRED)
                    .with_fields(keys)
                    .build()?;
                list_of(list, Arc::new(element), Repetition::REQUIRED)?
            }
        });
    }
    Ok(Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?))
}

fn repetition(is_nullable: bool) -> Repetition {
    if is_nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED }
}

fn field(name: &str, kind: Kind, shape: Shape) -> Result<TypePtr, ParquetError> {
    match shape {
        Shape::One => leaf(name, kind, Repetition::REQUIRED),
        Shape::OneOrNull => leaf(name, kind, Repetition::OPTIONAL),
        Shape::List => list_of(name, leaf("element", kind, Repetition::REQUIRED)?, Repetition::REQUIRED),
        Shape::ListOfNulls => {
            list_of(name, leaf("element", kind, Repetition::OPTIONAL)?, Repetition::REQUIRED)
        }
        Shape::ListOrNull => {
            list_of(name, leaf("element", kind, Repetition::REQUIRED)?, Repetition::OPTIONAL)
        }
    }
}

fn leaf(name: &str, kind: Kind, repetition: Repetition) -> Result<TypePtr, ParquetError> {
    let (physical, logical, converted) = match kind {
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String), ConvertedType::UTF8),
        Kind::Bytes => (Physical::BYTE_ARRAY, None, ConvertedType::NONE),
        Kind::Integer => (Physical::INT64, None, ConvertedType::NONE),
        Kind::Boolean => (Physical::BOOLEAN, None, ConvertedType::NONE),
        Kind::Time => {
            let logical = LogicalType::timestamp(true, TimeUnit::MICROS);
            (Physical::INT64, Some(logical), ConvertedType::TIMESTAMP_MICROS)
        }
    };
    let leaf = Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .with_converted_type(converted);
    leaf.build().map(Arc::new)
}

/// A list with the three levels that the format prescribes.
fn list_of(name: &str, element: TypePtr, repetition: Repetition) -> Result<TypePtr, ParquetError> {
    let elements = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![element])
        .build()?;
    let list = Type::group_type_builder(name)
        .with_repetition(repetition)
        .with_logical_type(Some(LogicalType::List))
        .with_converted_type(ConvertedType::LIST)
        .with_fields(vec![Arc::new(elements)]);
    list.build().map(Arc::new)
}

/// A column of one row group: its values, and the levels that say where nulls and lists are.
struct Cells {
    kind: Kind,
    shape: Shape,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    integers: Vec<i64>,
    booleans: Vec<bool>,
    /// All texts one after the other, and where each is.
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Cells {
    fn of<R>(column: &Column<R>, rows: &[R]) -> Cells {
        let mut cells = Cells {
            kind: column.kind,
            shape: column.shape,
            definition: Vec::new(),
            repetition: Vec::new(),
            integers: Vec::new(),
            booleans: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
        };
        for row in rows {
            cells.push((column.value)(row));
        }
        cells
    }

    fn push(&mut self, value: Value<'_>) {
        // What an empty list, and what its elements have, when null and when not.
        let (empty, null, present) = match self.shape {
            Shape::One => (0, 0, 0),
            Shape::OneOrNull | Shape::List => (0, 0, 1),
            Shape::ListOfNulls => (0, 1, 2),
            Shape::ListOrNull => (1, 0, 2),
        };
        match value {
            Value::List(values) if values.is_empty() => self.level(empty, 0),
            Value::List(values) => {
                for (index, value) in values.into_iter().enumerate() {
                    let level = if matches!(value, Value::Null) { null } else { present };
                    self.level(level, i16::from(index > 0));
                    self.scalar(value);
                }
            }
            Value::Null => self.level(null, 0),
            value => {
                self.level(present, 0);
                self.scalar(value);
            }
        }
    }

    fn level(&mut self, definition: i16, repetition: i16) {
        self.definition.push(definition);
        self.repetition.push(repetition);
    }

    fn scalar(&mut self, value: Value<'_>) {
        match value {
            Value::Text(text) => self.text(text.as_bytes()),
            Value::Bytes(bytes) => self.text(&bytes),
            Value::Integer(number) => self.integers.push(number),
            Value::Boolean(flag) => self.booleans.push(flag),
            Value::Null | Value::List(_) => {}
        }
    }

    fn text(&mut self, text: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.ranges.push(start..self.bytes.len());
    }

    fn write(self, into: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let definition = (self.shape != Shape::One).then_some(self.definition.as_slice());
        let is_list = !matches!(self.shape, Shape::One | Shape::OneOrNull);
        let repetition = is_list.then_some(self.repetition.as_slice());
        match self.kind {
            Kind::Text | Kind::Bytes => {
                let bytes = Bytes::from(self.bytes);
                let texts: Vec<ByteArray> =
                    self.ranges.into_iter().map(|range| ByteArray::from(bytes.slice(range))).collect();
                into.typed::<ByteArrayType>().write_batch(&texts, definition, repetition)?
            }
            Kind::Integer | Kind::Time => {
                into.typed::<Int64Type>().write_batch(&self.integers, definition, repetition)?
            }
            Kind::Boolean => into.typed::<BoolType>().write_batch(&self.booleans, definition, repetition)?,
        };
        Ok(())
    }
}
