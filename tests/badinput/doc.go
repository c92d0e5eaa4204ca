// Package badinput gives the command line every wrong input that a person or a
// host can produce, and wants three things of each refusal: its own diagnostic
// code, the exit code that scripts rely on, and no trace in the Runtime root.
package badinput
