package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat(`[`, maxDepth+1) + strings.Repeat(`]`, maxDepth+1)
	for name, body := range map[string]string{
		"nothing":                 ``,
		"not JSON":                `{"allocation_id"`,
		"a list":                  `[]`,
		"text":                    `"x"`,
		"null":                    `null`,
		"an unknown field":        `{"allocation_id":"ws-1","shell":true}`,
		"an unknown inner field":  `{"limits":{"disk":1}}`,
		"a field twice":           `{"allocation_id":"ws-1","allocation_id":"ws-2"}`,
		"a map key twice":         `{"env":{"A":"1","A":"2"}}`,
		"an escaped field twice":  `{"env":{"A":"1","\u0041":"2"}}`,
		"another case":            `{"Allocation_ID":"ws-1"}`,
		"the Go name":             `{"AllocationID":"ws-1"}`,
		"a null field":            `{"command":null}`,
		"a null element":          `{"command":["a",null]}`,
		"a number for text":       `{"allocation_id":1}`,
		"text for a number":       `{"limits":{"nice":"1"}}`,
		"a fraction":              `{"limits":{"nice":1.5}}`,
		"a number out of range":   `{"limits":{"open_files":18446744073709551616}}`,
		"a negative unsigned":     `{"limits":{"open_files":-1}}`,
		"a second document":       `{"allocation_id":"ws-1"}{}`,
		"trailing text":           `{"allocation_id":"ws-1"}x`,
		"a trailing NUL":          "{\"allocation_id\":\"ws-1\"}\x00",
		"a comment":               `{/**/"allocation_id":"ws-1"}`,
		"a trailing comma":        `{"command":["a",]}`,
		"broken UTF-8":            "{\"command\":[\"\xff\"]}",
		"a lone high surrogate":   `{"command":["\ud800"]}`,
		"a lone low surrogate":    `{"command":["\uDFFF"]}`,
		"a surrogate and text":    `{"command":["\ud800x"]}`,
		"two high surrogates":     `{"command":["\ud800\ud800"]}`,
		"too deep":                `{"command":` + deep + `}`,
		"too deep where it is ok": deep,
		"a byte order mark":       "\xef\xbb\xbf{}",
	} {
		t.Run(name, func(t *testing.T) {
			var req runtime.SpawnWorkerRequest
			err := decodeStrict([]byte(body), &req)
			if !errors.Is(err, policy.CodeBadRequest) {
				t.Fatalf("got %v, decoded %+v", err, req)
			}
			if d := policy.AsDiagnostic(err); strings.Contains(d.Message+d.Fields["field"], "runtime.") {
				t.Errorf("the message tells of Go: %q %q", d.Message, d.Fields)
			}
		})
	}
}

func TestDecodeTakes(t *testing.T) {
	body := `{"allocation_id":"ws-1", "command":["a\\ud800","\ud83d\ude00",""],
		"env":{"PATH":"1","Path":"2"}, "limits":{"nice":3}}` + " \r\n\t"
	var got runtime.SpawnWorkerRequest
	if err := decodeStrict([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := runtime.SpawnWorkerRequest{
		AllocationID: "ws-1", Command: []string{`a\ud800`, "😀", ""},
		Env: map[string]string{"PATH": "1", "Path": "2"}, Limits: policy.Limits{Nice: 3},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestDecodeNamesThePlace(t *testing.T) {
	var req runtime.CreateWorkspaceRequest
	err := decodeStrict([]byte(`{"repositories":[{"repository_id":"a"},{"selector":{"kynd":"x"}}]}`), &req)
	if got := policy.AsDiagnostic(err).Fields["field"]; got != "repositories[1].selector.kynd" {
		t.Errorf("the field is %q", got)
	}
}

// FuzzDecode looks for a document that decodeStrict takes and that another
// reader of JSON would read otherwise: what is taken must be one object that
// says the same after a round trip.
func FuzzDecode(f *testing.F) {
	for _, ex := range examples {
		f.Add([]byte(ex.body))
	}
	for _, s := range []string{`{}`, `{"env":{"\u0041":"\ud83d\ude00"}}`, `{"a":1,"a":2}`, `{"command":["\ud800\\"]}`, "{\"\x7f\":[[[[1]]]]}", `{"limits":{"nice":1e0}}`} {
		f.Add([]byte(s))
	}
	targets := []func() any{
		func() any { return new(runtime.SpawnWorkerRequest) },
		func() any { return new(runtime.CreateWorkspaceRequest) },
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, target := range targets {
			v := target()
			err := decodeStrict(body, v)
			if err != nil {
				if !errors.Is(err, policy.CodeBadRequest) {
					t.Fatalf("code %v", err)
				}
				continue
			}
			again, err := Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			w := target()
			if err := decodeStrict(again, w); err != nil {
				t.Fatalf("%q was taken, %q is not: %v", body, again, err)
			}
			var generic map[string]any
			if err := json.Unmarshal(body, &generic); err != nil {
				t.Fatalf("%q was taken and is no object: %v", body, err)
			}
			for name := range generic {
				if _, ok := fieldsOf(reflect.TypeOf(v).Elem())[name]; !ok {
					t.Fatalf("%q was taken with the field %q", body, name)
				}
			}
			if checkText(v) != nil {
				t.Fatalf("%q decoded to broken text", body)
			}
		}
	})
}

// FuzzQuery: whatever is taken has only known parameters, once each.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "limit=3", "limit=3&limit=4", "follow=true", "a=b", "limit=%", "limit=-1", "after=%00", "status=a;b", "follow", "limit=9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseQuery(raw, []string{"limit", "follow", "after", "status", "workspace_id"})
		if err != nil {
			if !errors.Is(err, policy.CodeBadRequest) {
				t.Fatal(err)
			}
			return
		}
		filter, err := q.filter()
		q.flag("follow")
		if err == nil && (filter.Limit < 0 || filter.Limit > maxPage) {
			t.Fatalf("%q gives the limit %d", raw, filter.Limit)
		}
		if err == nil && filter.WorkspaceID != "" && !policy.ValidID(string(filter.WorkspaceID)) {
			t.Fatalf("%q gives the id %q", raw, filter.WorkspaceID)
		}
	})
}
