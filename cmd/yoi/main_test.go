package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Reexec()
	testscript.Main(m, map[string]func(){
		"yoi":     func() { os.Exit(newApp().main(os.Args[1:])) },
		"withpty": withpty,
	})
}
