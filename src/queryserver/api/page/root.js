// Puts the address that the reader has used into the commands. It is text of the page, never markup.
"use strict";

document.getElementById("base").textContent = location.origin + document.body.dataset.prefix;
