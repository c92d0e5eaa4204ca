package backend

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/runtime"
)

// operation is what the OpenAPI document says of a route beside the route itself.
// The document is made of the route table and the Go types, so it cannot say
// anything else than what is served; a test holds real answers to it.
type operation struct {
	summary string
	in, out any
	status  int    // of the answer; 0 is 200
	media   string // of the answer; "" is JSON
	stream  string // what it sends as server-sent events, when asked
}

var operations = map[string]operation{
	"getOpenAPI":               {summary: "This document", out: map[string]any{}},
	"listWorkspaces":           {summary: "The workspaces that you may enter", out: list[Membership]{}},
	"getWorkspace":             {summary: "What a workspace allows", out: Membership{}},
	"listRepositories":         {summary: "The configured repositories", out: list[RepositoryChoice]{}},
	"listRefs":                 {summary: "Branches and tags that a selector can name", out: RefList{}},
	"listExecutionWorkspaces":  {summary: "A page of Execution Workspaces, newest first", out: ExecutionWorkspaceList{}},
	"createExecutionWorkspace": {summary: "Create an Execution Workspace; with Prefer: respond-async the answer is 202 and a Creation", in: CreateRequest{}, out: ExecutionWorkspace{}, status: 201},
	"getExecutionWorkspace":    {summary: "The safe summary", out: ExecutionWorkspace{}},
	"getEvidence":              {summary: "Proof of what it is made of", out: Evidence{}},
	"getDisk":                  {summary: "Measure what it occupies", out: Disk{}},
	"getWork":                  {summary: "What a cleanup would lose", out: Work{}},
	"getDiff":                  {summary: "What it changed since its commit", out: Diff{}},
	"listDirectories":          {summary: "Where a Worker can be started", out: DirectoryList{}},
	"streamEvents":             {summary: "The timeline; server-sent events for Accept: text/event-stream", out: list[Event]{}, stream: "event"},
	"cleanUpExecutionWorkspace": {summary: "Remove it; without discard work that would be lost is refused, without stop a running Worker is",
		in: CleanUpRequest{}, out: ExecutionWorkspace{}},
	"getCreation":    {summary: "How far a creation is", out: Creation{}},
	"streamCreation": {summary: "How far a creation is, at every change", out: Creation{}, media: "text/event-stream", stream: "progress"},
	"listWorkers":    {summary: "A page of Workers, newest first", out: WorkerList{}},
	"spawnWorker":    {summary: "Launch a Worker in an Execution Workspace that there is", in: SpawnRequest{}, out: Worker{}, status: 201},
	"getWorker":      {summary: "The safe summary, with its Execution Workspace's", out: Worker{}},
	"getLogs":        {summary: "A part of a log; server-sent events of its lines for Accept: text/event-stream", media: "application/octet-stream", stream: "lines"},
	"getEgress":      {summary: "What its allowlist let through and refused", out: Egress{}},
	"getUsage":       {summary: "Resource use over time, as far as somebody looked", out: Usage{}},
	"stopWorker":     {summary: "Send TERM, then KILL", in: StopRequest{}, out: Worker{}},
	"listAudit":      {summary: "Who did what; before pages", out: list[Act]{}},
}

// OpenAPI returns the document that describes the API (OpenAPI 3.0.3).
func OpenAPI() []byte {
	openAPI.once.Do(func() { openAPI.doc = makeOpenAPI() })
	return openAPI.doc
}

var openAPI struct {
	once sync.Once
	doc  []byte
}

func makeOpenAPI() []byte {
	s := &schemas{all: map[string]any{}}
	paths := map[string]map[string]any{}
	for _, r := range apiRoutes() {
		path := strings.ReplaceAll(r.path, "{w}", "{workspace}")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(r.method)] = r.document(s)
	}
	s.of(reflect.TypeFor[Problem]())
	doc := map[string]any{
		"openapi": "3.0.3",
		"info": map[string]any{"title": "yoi-backend", "version": runtime.Version,
			"description": "Workspaces for browsers and programs. Bodies are decoded strictly: an unknown, repeated or null field is refused. Every failure is a problem document with a stable code."},
		"paths":    paths,
		"security": []any{map[string]any{"token": []any{}}},
		"components": map[string]any{
			"schemas":         s.all,
			"securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}},
		},
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil { // maps of strings always encode
		panic(err)
	}
	return b
}

func (rt *route) document(s *schemas) map[string]any {
	o := operations[rt.operation]
	var parameters []any
	param := func(in, name string, required bool) {
		parameters = append(parameters, map[string]any{"name": name, "in": in, "required": required, "schema": map[string]any{"type": "string"}})
	}
	if strings.Contains(rt.path, "{w}") {
		param("path", "workspace", true)
	}
	if strings.Contains(rt.path, "{id}") {
		param("path", "id", true)
	}
	for _, q := range rt.query {
		param("query", q, false)
	}
	if rt.keyed {
		param("header", "Idempotency-Key", false)
	}
	status, media := o.status, o.media
	if status == 0 {
		status = 200
	}
	if media == "" {
		media = "application/json"
	}
	schema := map[string]any{"type": "string", "format": "binary"}
	if o.out != nil && media == "application/json" {
		schema = s.of(reflect.TypeOf(o.out))
	}
	content := map[string]any{media: map[string]any{"schema": schema}}
	if o.stream != "" && media != "text/event-stream" {
		content["text/event-stream"] = map[string]any{"schema": map[string]any{"type": "string"}}
	}
	responses := map[string]any{
		fmt.Sprint(status): map[string]any{"description": o.summary, "content": content},
		"default": map[string]any{"description": "A problem document.",
			"content": map[string]any{problemType: map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Problem"}}}},
	}
	if rt.operation == "createExecutionWorkspace" {
		responses["202"] = map[string]any{"description": "It is being made.", "content": map[string]any{"application/json": map[string]any{"schema": s.of(reflect.TypeFor[Creation]())}}}
	}
	doc := map[string]any{"operationId": rt.operation, "summary": o.summary, "responses": responses}
	if parameters != nil {
		doc["parameters"] = parameters
	}
	if rt.open {
		doc["security"] = []any{}
	} else if rt.role > 0 {
		doc["description"] = "Takes the role " + rt.role.String() + "."
	}
	if o.in != nil {
		doc["requestBody"] = map[string]any{"content": map[string]any{"application/json": map[string]any{"schema": s.of(reflect.TypeOf(o.in))}}}
	}
	return doc
}

// schemas makes schemas of Go types; structs are components.
type schemas struct{ all map[string]any }

func (s *schemas) of(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem())
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return map[string]any{"type": "object"}
		}
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.structure(t)
	}
	return map[string]any{"type": "integer", "format": "int64"}
}

func (s *schemas) structure(t reflect.Type) map[string]any {
	name := t.Name()
	if before, inside, ok := strings.Cut(name, "["); ok { // list[…Membership]
		name = strings.ToUpper(before[:1]) + before[1:] + "Of" + strings.TrimSuffix(inside[strings.LastIndexByte(inside, '.')+1:], "]")
	}
	ref := map[string]any{"$ref": "#/components/schemas/" + name}
	if _, ok := s.all[name]; ok {
		return ref
	}
	properties := map[string]any{}
	doc := map[string]any{"type": "object", "properties": properties}
	s.all[name] = doc
	var required []string
	for f := range t.Fields() {
		field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field == "" || field == "-" {
			continue
		}
		properties[field] = s.of(f.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, field)
		}
	}
	if required != nil {
		doc["required"] = required
	}
	return ref
}
