package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestDocumentIsUpToDate(t *testing.T) {
	got, err := os.ReadFile("../../docs/diagnostics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, render(policy.Catalog())) {
		t.Error("docs/diagnostics.md is not what the catalog says: run go generate ./policy")
	}
}

func TestDocumentListsEveryCode(t *testing.T) {
	doc := string(render(policy.Catalog()))
	for _, i := range policy.Catalog() {
		if n := strings.Count(doc, fmt.Sprintf("\n| `%s` | ", i.Code)); n != 1 {
			t.Errorf("%s is listed %d times", i.Code, n)
		}
	}
	for line := range strings.Lines(string(render([]policy.Info{{Code: "x", Status: 400, Title: "a|b", Hint: "c"}}))) {
		if strings.HasPrefix(line, "| `x`") && strings.Count(line, "|")-strings.Count(line, `\|`) != 5 {
			t.Errorf("a cell was cut: %s", line)
		}
	}
}
