// What an application does with gethue: it says where the server is and who the user is, and uses the modules as they are.
import './setup.js';
import $ from 'jquery';
import * as ko from 'knockout';
import Vue from 'vue';

import apiHelper from 'api/apiHelper';
import SqlExecutable from 'apps/notebook2/execution/sqlExecutable';
import Executor from 'apps/notebook2/execution/executor';
import contextCatalog from 'catalog/contextCatalog';
import HueTable from 'components/HueTable.vue';
import sqlStatementsParser from 'parse/sqlStatementsParser';
import { filterEditorConnectors, refreshConfig } from 'utils/hueConfig';
import 'utils/json.bigDataParse';

// Version 4.8.3 of the package calls the pages' private paths, with a cookie. The public ones are the same calls.
const PUBLIC = [
  ['/notebook/api/', '/api/v1/editor/'],
  ['/desktop/api2/get_config', '/api/v1/get_config']
];

const publicPath = path => {
  const found = PUBLIC.find(([own]) => path.startsWith(own));
  return found ? found[1] + path.slice(found[0].length) : path;
};

const calls = [];

// What the server does not know of what the package sends to it.
const unknownFields = [];
$(document).on('ajaxComplete', (event, answer) => {
  const names = answer.getResponseHeader('X-Unknown-Fields');
  if (names) {
    unknownFields.push(names);
  }
});

// The package rejects a promise that nobody waits for when the state of a statement is a failure.
const refusals = [];
window.addEventListener('unhandledrejection', event => {
  refusals.push(String(event.reason));
  event.preventDefault();
});

const logIn = async (server, username, password) => {
  const pair = await $.post(`${server}/api/v1/token/auth/`, { username, password });
  $.ajaxPrefilter(options => {
    const path = publicPath(options.url);
    calls.push(path);
    options.url = server + path;
    options.headers = { ...options.headers, Authorization: `Bearer ${pair.access}` };
    options.xhrFields = { withCredentials: true };
  });
};

const until = (condition, what) =>
  new Promise((resolve, reject) => {
    const end = Date.now() + 20000;
    const look = () => {
      if (condition()) {
        resolve();
      } else if (Date.now() > end) {
        reject(new Error(`waited in vain for ${what}: ${calls}`));
      } else {
        window.setTimeout(look, 50);
      }
    };
    look();
  });

const run = async (connector, context, database, text) => {
  const executor = new Executor({
    connector: ko.observable(connector),
    compute: ko.observable(context.namespaces[0].computes[0]),
    namespace: ko.observable(context.namespaces[0]),
    database: ko.observable(database),
    defaultLimit: ko.observable(10),
    isSqlEngine: true,
    executables: []
  });
  const executable = new SqlExecutable({
    executor,
    database,
    parsedStatement: sqlStatementsParser.parse(text)[0]
  });
  await executable.execute();
  await until(() => refusals.length || (executable.result && executable.result.fetchedOnce), 'rows');
  return executable;
};

const show = executable => {
  // The first column is the number that the package puts before each row.
  const [, ...columns] = executable.result.meta;
  const rows = executable.result.rows.map(row => Object.fromEntries(columns.map(({ name }, i) => [name, row[i + 1]])));
  const Table = Vue.extend(HueTable);
  const columnsShown = columns.map(({ name }) => ({ key: name, label: name }));
  new Table({ propsData: { columns: columnsShown, rows, caption: 'Rows' } }).$mount('#rows');
};

// All that the test asks for, as one value.
window.useGethue = async ({ server, username, password, type, database, statement }) => {
  await logIn(server, username, password);
  const config = await refreshConfig();
  const connector = filterEditorConnectors(one => one.type === type)[0];
  const context = await contextCatalog.getNamespaces({ connector });
  const computes = await contextCatalog.getComputes({ connector });
  const databases = await apiHelper.fetchSourceMetadata({ sourceType: type, path: [] });
  const executable = await run(connector, context, database, statement);
  if (executable.result) {
    show(executable);
  }
  const size = executable.result && (await executable.result.fetchResultSize());
  const state = {
    status: executable.status,
    refusals,
    meta: executable.result && executable.result.meta,
    rows: executable.result && executable.result.rows,
    size
  };
  await executable.close();
  return {
    interpreters: config.app_config.editor.interpreter_names,
    connector,
    namespaces: context.namespaces,
    computes,
    databases: databases.databases,
    ...state,
    unknownFields,
    calls
  };
};
