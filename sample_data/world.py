"""The small world of the sample model: eight household tools, the things they speak of, and how people ask.

make_corpus.py (pre-training) and make_sft.py (fine-tuning) both draw from it, so that the model knows the
words before it is asked to call the tools.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

Arguments = dict[str, str | int]

CITIES = (
    "Oslo Paris Tokyo Cairo Lima Rome Berlin Madrid Vienna Dublin Prague Athens Lisbon Warsaw Helsinki Geneva "
    "Boston Denver Chicago Toronto Sydney Delhi Seoul Nairobi Lagos Quito Havana Bogota Zurich Milan Porto "
    "Naples Munich Bergen Leeds Glasgow Bristol Oxford Krakow Riga"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karen Leo Maria Nora Oscar Paula Quinn Rosa Simon "
    "Tara Umar Vera Walter Yara Zoe Adam Bella Carl Diana Erik"
).split()
ROOMS = [
    "kitchen",
    "bedroom",
    "bathroom",
    "hallway",
    "garage",
    "office",
    "attic",
    "cellar",
    "nursery",
    "garden",
]
LABELS = "pasta tea eggs laundry nap rice bread pizza oven soup cake workout coffee potatoes meeting".split()
GENRES = "jazz rock folk blues opera soul disco techno reggae country metal swing funk choir piano".split()
CURRENCIES = "euros dollars pounds yen francs pesos rupees kronor zloty rand lira shekels".split()
PHRASES = [
    "dinner is ready", "the train is late", "I am at home", "the meeting starts at nine", "the dog is fine",
    "we need more milk", "the car is in the garage", "I will call later", "the keys are on the table",
    "the concert was great", "lunch is at noon", "the shop is closed", "I found the book", "the water is cold",
    "we are on the bus", "the window is open", "I have the tickets", "the cake is in the oven",
    "the plane has landed", "school ends early", "the garden looks lovely", "I lost my phone",
    "the heating is off", "grandma says hello", "the test went well", "the bike needs air",
    "the soup is hot", "the guests are here", "the film starts soon", "I am almost there",
]  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A function that may be called. `parameters`: name to the values that it can take. `requests`: ways to
    ask for it. `wish`: the same as a clause."""

    name: str
    description: str
    parameters: Mapping[str, list[str] | range]
    requests: tuple[str, ...]
    wish: str

    def schema(self) -> dict[str, object]:
        """The tool as Qwen2.5's chat template expects it."""
        properties = {
            name: {"type": "integer" if isinstance(values, range) else "string"}
            for name, values in self.parameters.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def draw(self, rng: random.Random, pools: Mapping[str, list[str]] | None = None) -> Arguments:
        """Random arguments, no value twice. `pools` narrows the values of some parameters."""
        arguments: Arguments = {}
        for name, values in self.parameters.items():
            allowed = pools.get(name, values) if pools and not isinstance(values, range) else values
            value = rng.choice(allowed)
            while value in arguments.values():
                value = rng.choice(allowed)
            arguments[name] = value
        return arguments


TOOLS = (
    Tool(
        "get_weather",
        "Get the weather forecast for a city",
        {"city": CITIES, "day": DAYS},
        (
            "What will the weather be like in {city} on {day}?",
            "Will it rain in {city} on {day}?",
            "Give me the forecast for {city} on {day}.",
            "I travel to {city} on {day}. Do I need an umbrella?",
            "On {day} I am in {city}. How warm will it be?",
        ),
        "the weather in {city} on {day}",
    ),
    Tool(
        "set_timer",
        "Set a kitchen timer",
        {"minutes": range(2, 60), "label": LABELS},
        (
            "Set a timer for {minutes} minutes for the {label}.",
            "The {label} needs {minutes} minutes. Please time it.",
            "Remind me of the {label} in {minutes} minutes.",
            "Start a {label} timer with {minutes} minutes.",
            "Wake me in {minutes} minutes because of the {label}.",
        ),
        "a timer of {minutes} minutes for the {label}",
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": range(2, 1000), "source": CURRENCIES, "target": CURRENCIES},
        (
            "How many {target} are {amount} {source}?",
            "Convert {amount} {source} to {target}.",
            "I have {amount} {source}. What is that in {target}?",
            "Change {amount} {source} into {target} for me.",
            "What do I get in {target} for {amount} {source}?",
        ),
        "{amount} {source} in {target}",
    ),
    Tool(
        "send_message",
        "Send a message to a contact",
        {"contact": NAMES, "text": PHRASES},
        (
            "Tell {contact} that {text}.",
            "Send {contact} a message: {text}.",
            "Let {contact} know that {text}.",
            "Write to {contact} that {text}.",
            "Please text {contact}: {text}.",
        ),
        "a message to {contact} saying {text}",
    ),
    Tool(
        "play_music",
        "Play music in a room",
        {"genre": GENRES, "room": ROOMS},
        (
            "Play some {genre} in the {room}.",
            "I want to hear {genre} in the {room}.",
            "Put on {genre} music in the {room}, please.",
            "The {room} is too quiet. Play {genre}.",
            "Start {genre} in the {room}.",
        ),
        "{genre} music in the {room}",
    ),
    Tool(
        "set_light",
        "Set the brightness of a light",
        {"room": ROOMS, "brightness": range(1, 100)},
        (
            "Dim the light in the {room} to {brightness} percent.",
            "Set the {room} light to {brightness} percent.",
            "Make the {room} {brightness} percent bright.",
            "It is too dark in the {room}. Go to {brightness} percent.",
            "I want {brightness} percent light in the {room}.",
        ),
        "{brightness} percent light in the {room}",
    ),
    Tool(
        "book_table",
        "Book a table in the restaurant",
        {"people": range(2, 13), "day": DAYS, "name": NAMES},
        (
            "Book a table for {people} on {day} under the name {name}.",
            "Reserve a table on {day} for {people} people. The name is {name}.",
            "We are {people} people and come on {day}. Book it for {name}.",
            "{name} wants a table for {people} on {day}.",
            "Can you get {name} a table for {people} on {day}?",
        ),
        "a table for {people} on {day} for {name}",
    ),
    Tool(
        "find_route",
        "Find a route between two cities",
        {"origin": CITIES, "destination": CITIES},
        (
            "How do I get from {origin} to {destination}?",
            "Show me the way from {origin} to {destination}.",
            "I am in {origin} and must go to {destination}. Which way?",
            "Find a route to {destination} from {origin}.",
            "I drive from {origin} to {destination}. Plan it.",
        ),
        "the way from {origin} to {destination}",
    ),
)


def offered(rng: random.Random, wanted: Tool) -> list[Tool]:
    """`wanted` and one other tool, in random order."""
    tools = [wanted, rng.choice([tool for tool in TOOLS if tool is not wanted])]
    rng.shuffle(tools)
    return tools
