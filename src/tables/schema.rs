//! Columns and their types, and the Parquet schema that they make.
//!
//! Types and nesting are those that every reader of Parquet has had for years: no unsigned numbers, no nested lists.
//! Neighbour: `columns.rs` has the columns.

use std::borrow::Cow;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};

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

/// The schema of the columns.
pub fn schema<R>(columns: &[Column<R>]) -> Result<TypePtr, ParquetError> {
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
