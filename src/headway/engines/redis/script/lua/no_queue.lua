-- For limits that promise a time to every caller: there is no queue in the ledger.

local process, released = '', false
local function serve() end
local function stand() end
local function withdraw() end
local function close_queue() end

local function poll(tickets, offset, into)
  for _ = 1, tickets[offset] do
    into[#into + 1] = 0
  end
  into[#into + 1] = FOREVER
end
