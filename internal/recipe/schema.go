package recipe

import _ "embed"

//go:embed recipe.schema.json
var schema []byte

// Schema is the JSON Schema (draft 2020-12) of a recipe. It covers the form of each key; only
// Load checks conditions on several keys or on files. It is for tests, which compare it with
// Load; editors read the file.
func Schema() []byte { return append([]byte(nil), schema...) }
