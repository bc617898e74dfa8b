#!/usr/bin/env node
"use strict";
require("./start.js")("agent-snapshot-bash");
