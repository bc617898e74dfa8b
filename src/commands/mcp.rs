//! `mcp`: a server of the Model Context Protocol, by which an agent lists, shows and undoes what it did.
//!
//! It is about one project and writes nothing but messages of the protocol to standard output. `tools.rs` has the table of
//! tools; those of `views.rs` and `changes.rs` call a verb each with a console that collects; `page.rs` bounds what they
//! return, `schema.rs` describes it.
//! Only here does an asynchronous runtime run, in this thread: one tool at a time.

mod changes;
mod page;
mod schema;
mod tools;
mod views;

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::Context as _;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    InitializeResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError, serve_server};

use super::exit::{Exit, VerbResult};
use super::sentence;
use crate::cli::Mcp;
use tools::{Project, TOOLS, ToolRow, find};

/// What a client tells its model of all tools.
const INSTRUCTIONS: &str = "agent-snapshot records what commands do to the files of this project. `log` lists the \
    recordings, `show` and `diff` tell what one of them changed, `history` who changed a path, `file_at` what a file \
    contained, `check` whether a recording kept to rules. To take changes back, call `undo`: it changes nothing and \
    returns a plan with a digest. Look at the plan, then call `undo` again with the same arguments and that digest. \
    `redo` works in the same way. Long results come in pages: call the tool again with `next_offset` as `offset`.";

/// Runs `mcp` until standard input ends.
pub fn run(args: &Mcp) -> VerbResult {
    let server = Server(Project::new(args)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.context("start the runtime")?;
    let ended = runtime.block_on(serve(server));
    // A read of standard input that has not ended is not waited for.
    runtime.shutdown_background();
    ended.map(|()| Exit::Success)
}

async fn serve(server: Server) -> anyhow::Result<()> {
    // Descriptors of its own: the standard library's output is locked for the console.
    let own = |descriptor: BorrowedFd| -> std::io::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(File::from(descriptor.try_clone_to_owned()?)))
    };
    let input = own(std::io::stdin().as_fd()).context("open standard input")?;
    let output = own(std::io::stdout().as_fd()).context("open standard output")?;
    match serve_server(server, (input, output)).await {
        Ok(running) => {
            running.waiting().await.context("serve")?;
            Ok(())
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(error).context("initialize the session with the client"),
    }
}

/// What answers the client.
struct Server(Project);

impl ServerHandler for Server {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(crate::agents::PROGRAM, env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(ToolRow::described).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        find(name).map(ToolRow::described)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = find(&request.name) else {
            let message = format!("there is no tool {}", request.name.escape_debug());
            return Err(ErrorData::invalid_params(message, None));
        };
        let result = match (tool.call)(&self.0, request.arguments.unwrap_or_default()) {
            Ok(value) => CallToolResult::structured(value),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(sentence(&error))]),
        };
        Ok(result.into())
    }
}
