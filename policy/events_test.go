package policy_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

// TestEveryEventIsDescribedOnce holds the table against the constants, which the
// compiler does not, and its texts against what a message catalog can hold.
func TestEveryEventIsDescribedOnce(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "events.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[policy.EventKind]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "EventKind" {
				s, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil || declared[policy.EventKind(s)] {
					t.Fatalf("%q twice, or %v", s, err)
				}
				declared[policy.EventKind(s)] = true
			}
		}
		return true
	})
	if len(declared) < 25 {
		t.Fatalf("only %d constants were found", len(declared))
	}
	kind, id := regexp.MustCompile(`^[a-z]+(\.[a-z_]+)?$`), regexp.MustCompile(`^[0-9a-f]{32}$`)
	field := regexp.MustCompile(`@([^@ ]*)@`)
	ids := map[string]policy.EventKind{}
	for _, e := range policy.Events() {
		if !declared[e.Kind] {
			t.Errorf("%q is no constant, or twice in the table", e.Kind)
		}
		delete(declared, e.Kind)
		if !kind.MatchString(string(e.Kind)) || !id.MatchString(e.MessageID) || e.MessageID == strings.Repeat("0", 32) {
			t.Errorf("%q, %q", e.Kind, e.MessageID)
		}
		if other, ok := ids[e.MessageID]; ok {
			t.Errorf("%s and %s have one id", e.Kind, other)
		}
		ids[e.MessageID] = e.Kind
		if got, ok := policy.DescribeEvent(e.Kind); !ok || got != e {
			t.Errorf("%s is described as %+v", e.Kind, got)
		}
		text := e.Title + e.Means + e.Next
		if e.Title == "" || e.Means == "" || e.Next == "" || policy.Printable(text) != text || strings.HasPrefix(e.Means, "--") {
			t.Errorf("%s: the text %q", e.Kind, text)
		}
		for _, m := range field.FindAllStringSubmatch(text, -1) {
			switch m[1] {
			case "YOI_WORKER_ID", "YOI_ALLOCATION_ID", "YOI_DIAGNOSTIC", "YOI_HINT":
			default:
				t.Errorf("%s names the field %q", e.Kind, m[1])
			}
		}
	}
	for k := range declared {
		t.Errorf("%s is not in the table", k)
	}
	if _, ok := policy.DescribeEvent("worker.abducted"); ok {
		t.Error("an unknown kind is described")
	}
}
