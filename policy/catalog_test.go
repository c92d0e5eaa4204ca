package policy_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

// declared reads the constants of type Code from the source: the compiler does
// not tell which were left out of the catalog.
func declared(t *testing.T) map[string]policy.Code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]policy.Code{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		for i, name := range spec.Names {
			s, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes[name.Name] = policy.Code(s)
		}
		return true
	})
	if len(codes) < 80 {
		t.Fatalf("only %d constants were found", len(codes))
	}
	return codes
}

func TestEveryCodeIsInTheCatalogOnce(t *testing.T) {
	seen := map[policy.Code]int{}
	for _, i := range policy.Catalog() {
		seen[i.Code]++
	}
	names := map[policy.Code]string{}
	for name, code := range declared(t) {
		if other := names[code]; other != "" {
			t.Errorf("%s and %s are both %q", name, other, code)
		}
		names[code] = name
		if seen[code] != 1 {
			t.Errorf("%s is in the catalog %d times", name, seen[code])
		}
		delete(seen, code)
	}
	for code := range seen {
		t.Errorf("the catalog has %q, which is no constant", code)
	}
}

func TestEveryCodeIsDescribed(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	titles := map[string]policy.Code{}
	for _, i := range policy.Catalog() {
		if !name.MatchString(string(i.Code)) {
			t.Errorf("%q is no name of lower-case words", i.Code)
		}
		if got := policy.Describe(i.Code); got != i {
			t.Errorf("%s: Describe says %+v, the catalog %+v", i.Code, got, i)
		}
		if other, ok := titles[i.Title]; ok {
			t.Errorf("%s and %s have the same title", i.Code, other)
		}
		titles[i.Title] = i.Code
		if i.Title == "" || strings.HasSuffix(i.Title, ".") {
			t.Errorf("%s: the title %q is no heading", i.Code, i.Title)
		}
		if !strings.HasSuffix(i.Hint, ".") && !strings.HasSuffix(i.Hint, "'") {
			t.Errorf("%s: the hint %q is no sentence", i.Code, i.Hint)
		}
		if strings.ContainsAny(i.Title+i.Hint, "\n\t\x1b") || policy.Printable(i.Title+i.Hint) != i.Title+i.Hint {
			t.Errorf("%s: its text is not printable", i.Code)
		}
		// 499 is nginx's, and widely understood: the client has gone.
		if i.Status != 200 && i.Status != 499 && (i.Status < 400 || http.StatusText(i.Status) == "") {
			t.Errorf("%s: %d is no status of an error", i.Code, i.Status)
		}
	}
}
