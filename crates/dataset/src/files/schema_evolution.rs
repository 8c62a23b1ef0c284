//! Parquet and Arrow IPC files with different schemas, as tables with a common schema.
//!
//! DataFusion takes the schema of the first file for all, and casts whatever differs. Here the schemas of all files are
//! inspected first.

use std::io::Read;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{Expr, LogicalPlan, Union, cast, lit};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::exec::catch_panics::{CatchPanics, caught};
use crate::files::ipc_check::check;
use crate::files::paths::{InputFile, InputFiles, PlaceColumns};
use crate::lossless_cast::{LosslessCast, widens};
use crate::plan::expr::column;

/// Number of files whose schemas are read concurrently.
pub(crate) const FILES_AT_ONCE: usize = 32;

/// The schemas of Parquet files.
pub(crate) async fn parquet_schemas(
    engine: &Engine,
    files: &[InputFile],
    format: &dyn FileFormat,
) -> Result<Vec<SchemaRef>> {
    let state = engine.context().state();
    let state = &state;
    let of = |file: &InputFile| {
        let url = file.listing_url();
        let name = file.to_string();
        async move {
            let url = url?;
            let store = state.runtime_env().object_store(url.object_store())?;
            let read = async {
                let meta = store.head(url.prefix()).await?;
                format.infer_schema(state, &store, &[meta]).await
            };
            match CatchPanics::new(read).await {
                Ok(read) => read.map_err(|error| unreadable(&name, "Parquet", &error.into())),
                Err(text) => Err(unreadable(&name, "Parquet", &DataSetError::Data(text))),
            }
        }
    };
    futures::stream::iter(files.iter().map(of)).buffered(FILES_AT_ONCE).try_collect().await
}

/// The maximum size of a batch: the budget, or else the machine's memory.
fn memory_bytes(engine: &Engine) -> u64 {
    match engine.governor().settings().budget_bytes {
        0 => {
            let machine = rustix::system::sysinfo();
            (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit).max(1))
        }
        budget => budget,
    }
}

fn unreadable(file: &str, format: &str, error: &DataSetError) -> DataSetError {
    DataSetError::Data(format!("{file} cannot be read as {format}: {error}"))
}

/// The schemas of Arrow files. For files in stores, DataFusion can read schemas only if they are aligned to 8 bytes,
/// which it does not do when writing.
///
/// First checks the sizes that the files claim.
pub(crate) async fn ipc_schemas(engine: &Engine, files: &[InputFile]) -> Result<Vec<SchemaRef>> {
    let files = files.to_vec();
    let memory_bytes = memory_bytes(engine);
    let schema = move |file: &InputFile| -> Result<SchemaRef> {
        if let Err(text) = check(file, memory_bytes)? {
            return Err(unreadable(&file.to_string(), "Arrow IPC", &DataSetError::Data(text)));
        }
        let mut source = file.open(0)?;
        let failed =
            |error: std::io::Error| unreadable(&file.to_string(), "Arrow IPC", &DataSetError::Io(error.to_string()));
        let mut start = [0; 6];
        source.read_exact(&mut start).map_err(failed)?;
        // After its magic number and padding, a file is a stream.
        let mut first = start.to_vec();
        if start == *b"ARROW1" {
            first = vec![0];
            while first == [0] {
                source.read_exact(&mut first).map_err(failed)?;
            }
        }
        let reader = caught(|| StreamReader::try_new(std::io::Cursor::new(first).chain(source), None));
        let reader = reader.map_err(|text| unreadable(&file.to_string(), "Arrow IPC", &DataSetError::Data(text)))?;
        Ok(reader.map_err(|error| unreadable(&file.to_string(), "Arrow IPC", &error.into()))?.schema())
    };
    let read = tokio::task::spawn_blocking(move || files.iter().map(schema).collect());
    read.await.map_err(|error| DataSetError::Internal(error.to_string()))?
}

/// Whether the columns of all files are those of `wanted`, in the same order if `in_order`.
pub(crate) fn are_alike(schemas: &[SchemaRef], wanted: &Schema, in_order: bool) -> bool {
    schemas.iter().all(|schema| {
        let same = |(place, field): (usize, &Arc<Field>)| match schema.index_of(field.name()) {
            Ok(found) => (found == place || !in_order) && schema.field(found).data_type() == field.data_type(),
            Err(_) => !in_order,
        };
        wanted.fields().iter().enumerate().all(same) && (!in_order || schema.fields().len() == wanted.fields().len())
    })
}

/// Arrow files with different schemas: files with the same schema form a table, and the result is the union of the
/// tables.
pub(crate) fn read_ipc(
    engine: &Engine,
    mut found: InputFiles,
    file_column: Option<&str>,
    schemas: Vec<SchemaRef>,
    wanted: &SchemaRef,
    options: &ListingOptions,
) -> Result<DataSet> {
    let folders = found.take_place_columns(file_column);
    // Folder columns are added here, to tables of files that are not in matching folders.
    let options = options.clone().with_table_partition_cols(Vec::new());
    let mut groups: Vec<(SchemaRef, Vec<String>, Vec<InputFile>)> = Vec::new();
    for (file, schema) in found.files.into_iter().zip(schemas) {
        let values = folders.as_ref().map_or_else(Vec::new, |folders| folders.values(&file));
        match groups.iter_mut().find(|(known, those, _)| known.fields() == schema.fields() && *those == values) {
            Some((_, _, files)) => files.push(file),
            None => groups.push((schema, values, vec![file])),
        }
    }
    let mut frames = Vec::new();
    for (schema, values, files) in groups {
        let urls = files.iter().map(InputFile::listing_url).collect::<Result<Vec<_>>>()?;
        let config = ListingTableConfig::new_with_multi_paths(urls)
            .with_listing_options(options.clone())
            .with_schema(Arc::clone(&schema));
        let table = DataSet::new(engine.context().read_table(Arc::new(ListingTable::try_new(config)?))?)?;
        frames.push(table.select(adapted(&schema, wanted, folders.as_ref(), &values))?.frame().clone());
    }
    let state = engine.context().state();
    let plans = frames.into_iter().map(|frame| Arc::new(frame.logical_plan().clone())).collect::<Vec<_>>();
    let plan = match &plans[..] {
        [one] => LogicalPlan::clone(one),
        _ => LogicalPlan::Union(Union::try_new_with_loose_types(plans)?),
    };
    DataSet::new(DataFrame::new(state, plan))
}

fn adapted(schema: &Schema, wanted: &Schema, folders: Option<&PlaceColumns>, values: &[String]) -> Vec<Expr> {
    let of = |field: &Arc<Field>| match schema.field_with_name(field.name()) {
        Ok(there) if there.data_type() == field.data_type() => column(field.name()),
        Ok(_) => {
            LosslessCast::function(field.name(), field.data_type()).call(vec![column(field.name())]).alias(field.name())
        }
        Err(_) => cast(lit(ScalarValue::Null), field.data_type().clone()).alias(field.name()),
    };
    let names = folders.iter().flat_map(|folders| &folders.names);
    let repeated = names.zip(values).map(|(name, value)| lit(value.as_str()).alias(name));
    wanted.fields().iter().map(of).chain(repeated).collect()
}

/// Parquet files in which some columns have other types than in the table. DataFusion takes a file's minimum and
/// maximum for values of the table's type, and drops those that are not. Here such columns have no statistics.
#[derive(Debug)]
pub(crate) struct EvolvedParquet {
    format: Arc<dyn FileFormat>,
    other: Vec<usize>,
    floats: Vec<usize>,
}

/// The positions of float columns.
fn floats(schema: &Schema) -> Vec<usize> {
    let fields = schema.fields().iter().enumerate();
    fields.filter(|(_, field)| field.data_type().is_floating()).map(|(place, _)| place).collect()
}

/// Whether statistics of Parquet files with this schema cannot be trusted as they are.
pub(crate) fn has_floats(schema: &Schema) -> bool {
    !floats(schema).is_empty()
}

impl EvolvedParquet {
    pub(crate) fn new(format: Arc<dyn FileFormat>, schemas: &[SchemaRef], wanted: &Schema) -> Self {
        let differs = |field: &Field| {
            let there = |schema: &SchemaRef| {
                schema.field_with_name(field.name()).is_ok_and(|there| there.data_type() != field.data_type())
            };
            schemas.iter().any(there)
        };
        let other = wanted.fields().iter().enumerate().filter(|(_, field)| differs(field)).map(|(place, _)| place);
        EvolvedParquet { format, other: other.collect(), floats: floats(wanted) }
    }
}

#[async_trait]
impl FileFormat for EvolvedParquet {
    fn get_ext(&self) -> String {
        self.format.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> PlanResult<String> {
        self.format.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.format.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> PlanResult<SchemaRef> {
        self.format.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> PlanResult<Statistics> {
        let mut known = self.format.infer_stats(state, store, table_schema, object).await?;
        for &place in &self.floats {
            if let Some(column) = known.column_statistics.get_mut(place) {
                // They ignore NaN: a file with NaN and 1.5 would appear to contain only 1.5.
                (column.min_value, column.max_value) = (Precision::Absent, Precision::Absent);
            }
        }
        for &place in &self.other {
            if let Some(column) = known.column_statistics.get_mut(place) {
                *column = ColumnStatistics::new_unknown();
            }
        }
        Ok(known)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        self.format.create_physical_plan(state, conf).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.format.file_source(table_schema)
    }
}

/// Converts the columns of each Parquet file to those of the table, without loss.
#[derive(Debug)]
pub(crate) struct LosslessColumns;

impl PhysicalExprAdapterFactory for LosslessColumns {
    fn create(&self, table: SchemaRef, file: SchemaRef) -> PlanResult<Arc<dyn PhysicalExprAdapter>> {
        let mut checked = Vec::new();
        // For DataFusion's adapter, columns that are checked here keep the type they have in the file.
        let known = table.fields().iter().map(|field| match file.field_with_name(field.name()) {
            Ok(there) if !widens(there.data_type(), field.data_type()) => {
                checked.push(Arc::clone(field));
                Arc::new(there.clone())
            }
            _ => Arc::clone(field),
        });
        let known = Arc::new(Schema::new(known.collect::<Vec<_>>()));
        let adapter = DefaultPhysicalExprAdapterFactory.create(known, Arc::clone(&file))?;
        Ok(Arc::new(EvolvedAdapter { adapter, file, checked }))
    }
}

#[derive(Debug)]
struct EvolvedAdapter {
    adapter: Arc<dyn PhysicalExprAdapter>,
    file: SchemaRef,
    checked: Vec<Arc<Field>>,
}

impl PhysicalExprAdapter for EvolvedAdapter {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> PlanResult<Arc<dyn PhysicalExpr>> {
        let rewritten = self.adapter.rewrite(expr)?;
        if self.checked.is_empty() {
            return Ok(rewritten);
        }
        let check = |node: Arc<dyn PhysicalExpr>| {
            let Some(name) = node.downcast_ref::<Column>().map(Column::name) else { return Ok(Transformed::no(node)) };
            let Some(field) = self.checked.iter().find(|field| field.name() == name) else {
                return Ok(Transformed::no(node));
            };
            let function = Arc::new(LosslessCast::function(name, field.data_type()));
            let cast =
                ScalarFunctionExpr::try_new(function, vec![node], &self.file, Arc::new(ConfigOptions::default()))?;
            Ok(Transformed::new(Arc::new(cast) as Arc<dyn PhysicalExpr>, true, TreeNodeRecursion::Jump))
        };
        rewritten.transform_down(check).data()
    }
}
